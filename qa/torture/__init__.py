"""Faults, hostile clients and crowds against the real daemon, measured.

`python -m qa.torture` runs everything, `--write` writes the tables into docs/proof/reliability.md.
"""
