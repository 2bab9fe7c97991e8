"""The models of a scenario file, and how it is read."""
