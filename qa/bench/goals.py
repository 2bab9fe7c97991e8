"""What gpugauge costs beside its goals, and beside two limits that are measured in the same run.

The limits are a server of our body as a file (Go, nginx or Python, as for qa.bench.scrape), and Python's own
http.server with that file (qa.bench.bare). The time and the memory of the simulated library are taken off, as in
qa.bench.cost.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from qa.bench import figures, ledger
from qa.bench.cost import PAUSE_SECONDS as SCRAPE_PAUSE_SECONDS
from qa.bench.cost import RECEIVER, SCRAPES, WARM_UP_SECONDS, spent
from qa.bench.measure import Program, ours, running
from qa.bench.nodes import node
from qa.bench.report import report
from qa.bench.scrape import servers
from qa.bench.weight import weight

DEVICES, PROCESSES = 8, 24
STARTS = 9
CLOCK = "BENCH_CLOCK"  # see qa.bench.simulated
# Seconds measured, and the goal in CPU seconds a minute, by seconds between two scrapes.
CPU = {None: (60.0, 0.11), 15.0: (90.0, 0.12), 1.0: (30.0, 0.25)}
MEMORY, MEMORY_WITH_RECEIVER = 35.0, 35.0  # MB
START, OLDEST = 0.20, 1.0  # seconds
LEARNED = 4  # scrapes of a new scraper until its period is known

Start = Callable[[], AbstractContextManager[Program]]
_ENERGY = re.compile(rb"^gpu_energy_joules_total\{[^}]*\} (\S+)", re.MULTILINE)


class Table:
    """Rows with a value of ours, those of the limits, and a goal for ours."""

    def __init__(self, limits: list[str]) -> None:
        self._limits = limits
        self.rows: list[dict[str, Any]] = []
        self.figures: dict[str, str] = {}

    def add(self, key: str, what: str, goal: float, value: float, *limits: float) -> None:
        target = f"{'met' if value <= goal else 'NOT met'}: at most {goal:g}"
        named = dict.fromkeys(self._limits, "") | dict(zip(self._limits, limits, strict=False))
        self.rows.append({"what": what, "gpugauge": value, **named, "target": target})
        self.figures[key] = f"{value:.2f}" if goal < 10 else f"{value:.0f}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, node(DEVICES, PROCESSES) as path:
        folder = Path(name)
        folder.chmod(0o755)
        with ours(path, DEVICES) as daemon, contextlib.closing(daemon.connect()) as connection:
            (folder / "metrics").write_bytes(daemon.scrape(connection))
        named, command = servers(folder)[0]
        bare = [sys.executable, "-m", "qa.bench.bare", str(folder / "metrics")]
        limits: list[Start] = [
            lambda: running("Python's http.server", lambda port: [*bare, str(port)], lambda _: True),
            lambda: running(f"static file{named}", command, lambda _: True),
        ]
        table = Table(["Python's http.server", f"static file{named}"])
        _measure_cpu(table, path, limits, folder / "ledger")
        _weigh(table, path, limits)
        _start(table, [partial(ours, path, DEVICES), *limits])
    report(
        f"What gpugauge costs, its goals, and the least that servers cost, {DEVICES} H100 with {PROCESSES} processes",
        table.rows,
        "python -m qa.bench.goals",
        [
            "Without the time and the memory of the simulated library. The oldest value is that of the values of GPUs "
            "which are read every 5 s or more often; those of the group slow are read every 30 s. Memory is that of "
            f"one program that runs alone, after {SCRAPES:,} scrapes. A start is the median of {STARTS}."
        ],
        figures=table.figures,
    )


def _measure_cpu(table: Table, path: str, limits: list[Start], folder: Path) -> None:
    """Measure ours and the limits at the same time, and the ages of the values that ours serves."""
    folder.mkdir()
    price = ledger.price(folder)
    os.environ[CLOCK] = ""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(ours(path, DEVICES, ledger=folder))
        del os.environ[CLOCK]
        programs = (daemon, *(stack.enter_context(start()) for start in limits))
        bodies = _recorded(daemon)
        time.sleep(WARM_UP_SECONDS)
        for every, (seconds, goal) in CPU.items():
            bodies.clear()
            sums: list[dict[int, ledger.Sum]] = []
            found = spent(programs, seconds, every, lambda sums=sums: sums.append(ledger.read(folder)))  # type: ignore[misc]  # the lambda has a default
            pids = [pid for pid in found[daemon.name] if pid in sums[1]]
            library = [sums[1][pid].since(sums[0].get(pid, ledger.Sum(0.0, 0))) for pid in pids]
            inside = sum(part.seconds + part.calls * price.beside for part in library) * 60 / seconds
            values = [sum(found[program.name].values()) for program in programs]
            phase = "idle" if every is None else f"scraped each {every:g} s"
            key = "idle" if every is None else f"{every:g}s"
            table.add(f"cpu-{key}", f"CPU seconds a minute, {phase}", goal, values[0] - inside, *values[1:])
            if every == 15.0:
                ages = [age for body in bodies for age in body]
                later = [age for body in bodies[LEARNED:] for age in body]
    table.add("oldest", "oldest value at a scrape each 15 s, s", OLDEST, max(ages))
    table.add("oldest-later", "the same, from the fifth scrape of the scraper on", OLDEST, max(later))
    table.figures["oldest-median"] = f"{statistics.median(ages):.2f}"


def _recorded(program: Program) -> list[list[float]]:
    """Return a list that gets the ages of the values of each further scrape of a program, with `CLOCK`."""
    scrape, found = program.scrape, list[list[float]]()

    def noted(connection: http.client.HTTPConnection) -> bytes:
        now, body = time.monotonic(), scrape(connection)
        found.append([now - float(value) for value in _ENERGY.findall(gzip.decompress(body))])
        return body

    program.scrape = noted  # type: ignore[method-assign]  # a stand-in
    return found


def _weigh(table: Table, path: str, limits: list[Start]) -> None:
    """Measure the memory of one program after the other, each alone."""
    starts: list[Start] = [partial(ours, path, DEVICES), *limits]
    sizes, receiver = [], 0.0
    for start in starts:
        with start() as program, contextlib.closing(program.connect()) as connection:
            for _ in range(SCRAPES):
                program.scrape(connection)
                time.sleep(SCRAPE_PAUSE_SECONDS)
            found = program.pss_megabytes()
            sizes.append(sum(found.values()))
            receiver += sum(size for pid, size in found.items() if is_receiver(pid))
    sizes[0] -= weight(path)
    table.add(
        "memory", f"PSS MB after {SCRAPES:,} scrapes, without the receiver", MEMORY, sizes[0] - receiver, *sizes[1:]
    )
    table.add("memory-receiver", "the same, with the receiver", MEMORY_WITH_RECEIVER, sizes[0], *sizes[1:])


def is_receiver(pid: int) -> bool:
    """Return whether a child process of ours is the receiver."""
    return RECEIVER in Path(f"/proc/{pid}/cmdline").read_text()


def _start(table: Table, starts: list[Start]) -> None:
    """Measure starts by turns, from the start to a complete page."""
    seconds: list[list[float]] = [[] for _ in starts]
    for _ in range(1 + STARTS):  # the first compiles modules
        for start, found in zip(starts, seconds, strict=True):
            with start() as program:
                found.append(program.ready_seconds)
    table.add("start", "start to a complete page, s", START, *(statistics.median(found[1:]) for found in seconds))


if __name__ == "__main__":
    figures.run("goals", main)
