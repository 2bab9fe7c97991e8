"""Collectors of the exporter itself and of its driver connection."""
