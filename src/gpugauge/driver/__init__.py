"""The GPU driver: a worker process that alone talks to it, and the parent's view of what it said."""
