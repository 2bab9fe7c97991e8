"""What the daemon does on the worst day: faults, hostile neighbours and crowds, with a figure for each.

`python -m bench.torture` runs everything, `--write` puts it into docs/reliability.md.
"""
