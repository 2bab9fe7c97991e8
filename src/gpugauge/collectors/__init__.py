"""Collectors: a table of metric rows and one function that reads them from a tick."""
