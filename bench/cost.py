"""CPU seconds a minute and proportional memory: idle, and scraped each 15 s and each second, ours beside
nvitop-exporter's on the same simulated library, at the same time.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from bench.measure import Program, nvitop_exporter, ours, series
from bench.nodes import node
from bench.report import report

CARDS, PROCESSES = 8, 24
# Seconds measured by seconds between two scrapes.
PHASES = {None: 40.0, 15.0: 45.0, 1.0: 40.0}
WARM = 12.0


def spent(programs: tuple[Program, ...], seconds: float, every: float | None) -> dict[str, dict[int, float]]:
    """Let the programs run beside each other; return CPU seconds a minute by program and pid."""
    stop = threading.Event()

    def scrape(program: Program, every: float) -> None:
        connection = program.connect()
        while not stop.wait(every):
            program.scrape(connection)

    threads = [threading.Thread(target=scrape, args=[p, every]) for p in programs] if every else []
    for thread in threads:
        thread.start()
    if every:
        time.sleep(2 * every + 1)  # the rhythm is known
    before = {p.name: p.cpu_seconds() for p in programs}
    time.sleep(seconds)
    after = {p.name: p.cpu_seconds() for p in programs}
    stop.set()
    for thread in threads:
        thread.join()
    return {
        name: {pid: (value - before[name].get(pid, 0.0)) * 60 / seconds for pid, value in times.items()}
        for name, times in after.items()
    }


def main() -> None:
    with node(CARDS, PROCESSES) as path, ours(path, CARDS) as daemon, nvitop_exporter(path, CARDS) as peer:
        programs = (daemon, peer)
        time.sleep(WARM)
        phases = {every: spent(programs, seconds, every) for every, seconds in PHASES.items()}
        rows = [row for program in programs for row in _rows(program, phases)]
    report(
        f"CPU seconds a minute and memory on {CARDS} H100 with {PROCESSES} processes, sampled each second",
        rows,
        "python -m bench.cost",
    )


def _rows(program: Program, phases: dict[float | None, dict[str, dict[int, float]]]) -> list[dict[str, Any]]:
    sizes, names = program.pss_megabytes(), {}
    if len(sizes) > 1:
        names = dict.fromkeys(sizes, "worker, simulator included") | {program.process.pid: "parent"}
    parts = [("all", list(sizes)), *((names[pid], [pid]) for pid in names)]
    rows = []
    for part, pids in parts:
        row: dict[str, Any] = {"exporter": program.name, "part": part}
        row["series"] = series(program.plain()) if part == "all" else ""
        for every, found in phases.items():
            name = "idle" if every is None else f"scraped each {every:g} s"
            row[name] = sum(found[program.name][pid] for pid in pids)
        rows.append(row | {"PSS MB": sum(sizes[pid] for pid in pids)})
    return rows


if __name__ == "__main__":
    main()
