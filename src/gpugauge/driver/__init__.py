"""The GPU driver: the worker process that owns the vendor library, and its supervisor in the daemon."""
