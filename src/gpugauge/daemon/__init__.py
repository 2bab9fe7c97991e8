"""The daemon: life cycle, assembly of its parts, sampler, reload."""
