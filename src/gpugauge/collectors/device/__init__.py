"""Collectors of GPUs."""
