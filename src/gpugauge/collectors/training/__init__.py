"""Collectors of training processes."""
