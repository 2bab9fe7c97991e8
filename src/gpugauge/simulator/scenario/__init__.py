"""Scenario files: their models and their loader."""
