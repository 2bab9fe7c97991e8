"""Seconds from the start to the first scrape with every GPU, for gpugauge and nvitop-exporter alternately."""

from __future__ import annotations

import statistics
from typing import Any

from qa.bench import figures
from qa.bench.measure import nvitop_exporter, ours
from qa.bench.nodes import node
from qa.bench.report import report

DEVICES, PROCESSES = 8, 24
STARTS = 9


def main() -> None:
    found: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    with node(DEVICES, PROCESSES) as path:
        for start in (ours, nvitop_exporter):
            with start(path, DEVICES):
                pass  # compiles its modules
        for _ in range(STARTS):
            for start in (ours, nvitop_exporter):
                with start(path, DEVICES) as program:
                    found.setdefault(program.name, []).append(program.ready_seconds)
                    spent.setdefault(program.name, []).append(sum(program.cpu_seconds().values()))
    rows: list[dict[str, Any]] = [
        {
            "exporter": name,
            "median s": statistics.median(seconds),
            "least s": min(seconds),
            "most s": max(seconds),
            "CPU s": statistics.median(spent[name]),
        }
        for name, seconds in found.items()
    ]
    machine = f"{DEVICES} H100 with {PROCESSES} processes"
    title = f"From the start to the first complete scrape, {machine}, {STARTS} starts of each"
    ours_first, peers_first = (f"{row['median s']:.2f}" for row in rows)
    report(title, rows, "python -m qa.bench.startup", figures={"first": ours_first, "peer": peers_first})


if __name__ == "__main__":
    figures.run("startup", main)
