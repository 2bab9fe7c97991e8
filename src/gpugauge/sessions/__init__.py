"""The daemon's end of the hook socket."""
