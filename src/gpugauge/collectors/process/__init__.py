"""Collectors of processes on GPUs."""
