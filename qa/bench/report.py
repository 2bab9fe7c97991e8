"""The tables of a bench: printed, and kept for --write (qa.bench.figures)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_LOAD = round(os.getloadavg()[0], 1)  # before the bench
_STOLEN = 7  # the column of steal time in /proc/stat, after user, nice, system, idle, iowait, irq and softirq
_VERSIONS = ("gpugauge", "nvitop-exporter", "nvidia-ml-py", "tornado", "pydantic", "torch")

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Report:
    """One table, and the command that makes it. `figures` are single figures for documents, as text, by key."""

    title: str
    rows: Rows
    command: str
    notes: tuple[str, ...] = ()
    name: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> list[list[str]]:
        keys = list(self.rows[0])
        return [keys] + [[_text(row.get(key, "")) for key in keys] for row in self.rows]

    def plain(self) -> str:
        cells = self.cells()
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
        return "\n".join([f"# {self.title}", *lines, *self.notes])

    def markdown(self, *, heading: bool = True) -> str:
        head, *body = (f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in self.cells())
        rule = "|---" + "|---:" * (len(self.rows[0]) - 1) + "|"
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"### {self.title}\n"] * heading + [head, rule, *body, *notes])


reported: list[Report] = []


def report(
    title: str,
    rows: Rows,
    command: str = "",
    notes: Sequence[str] = (),
    *,
    name: str = "",
    figures: Mapping[str, str] | None = None,
) -> None:
    """Print the rows as a table, or with --json as one JSON object with machine and versions."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", action="store_true")
    arguments, _ = parser.parse_known_args()
    made = Report(title, rows, command, tuple(notes), name, figures or {})
    reported.append(made)
    if arguments.json:
        print(json.dumps({"title": title, **machine(), "rows": list(rows), "notes": list(notes)}))
    else:
        print(made.plain())


def machine() -> dict[str, Any]:
    """Return the date, the machine and the versions under which figures were measured."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    facts |= {"processor": _processor(), "kernel": platform.release(), "load average before": _LOAD}
    facts |= {"stolen by other machines": _stolen()}
    return facts | dict(_versions())


def sentence() -> str:
    """Return the same as a sentence."""
    facts = machine()
    date, rest = facts.pop("date"), ", ".join(f"{key} {value}" for key, value in facts.items())
    return f"Measured on {date} without a GPU, on a simulated driver: {rest}."


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ticks() -> list[int]:
    return [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def _stolen() -> str:
    """Return the steal time as a share of the busy time of all cores, since the bench began."""
    spent = [now - before for now, before in zip(_ticks(), _BEFORE, strict=True)]
    busy = sum(spent) - spent[3] - spent[4]
    return f"{100 * spent[_STOLEN] / max(1, busy):.0f} %"


_BEFORE = _ticks()


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            found.append((name, version(name)))
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
