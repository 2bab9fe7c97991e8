"""Faults, hostile clients and crowds against the real daemon, measured.

`python -m bench.torture` runs everything, `--write` writes the tables into docs/reliability.md.
"""
