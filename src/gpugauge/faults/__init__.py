"""Faults of GPUs: what they are called, from when on they hold, and what to do about them."""
