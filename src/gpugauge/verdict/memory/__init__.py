"""The memory of trainings: how it grows, and what is left of it."""
