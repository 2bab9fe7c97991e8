"""What gpugauge costs beside its goals, beside nvitop-exporter, and beside a server in C, in the same run.

The server (floor.c) reads /proc as often as ours and prints our page anew; it is built with gcc and zlib. The time and
the memory of the simulated library are taken off, as in qa.bench.cost.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import statistics
import subprocess
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
from qa.bench.measure import Program, nvitop_exporter, ours, running
from qa.bench.nodes import node
from qa.bench.report import report
from qa.bench.weight import weight

DEVICES, PROCESSES = 8, 24
STARTS = 9
FLOOR = "a server in C"
CLOCK = "BENCH_CLOCK"  # see qa.bench.simulated
# Seconds measured, and the goal in CPU seconds a minute, by seconds between two scrapes.
CPU = {None: (60.0, 0.11), 15.0: (90.0, 0.12), 1.0: (30.0, 0.25)}
MEMORY, MEMORY_WITH_RECEIVER = 35.0, 35.0  # MB
START, OLDEST = 0.20, 1.0  # seconds
LEARNED = 4  # scrapes of a new scraper until its period is known

Start = Callable[..., AbstractContextManager[Program]]
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
        pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        with ours(path, DEVICES) as daemon:
            (folder / "metrics").write_text(daemon.plain())
        floor = folder / "floor"
        source = Path(__file__).with_name("floor.c")
        subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", "-o", str(floor), str(source), "-lz"], check=True)
        command = [str(floor), str(folder / "metrics")]
        peers: list[Start] = [
            lambda ledger=None: running(FLOOR, lambda port: [*command, str(port), *pids], lambda _: True),
            partial(nvitop_exporter, path, DEVICES),
        ]
        table = Table([FLOOR, "nvitop-exporter"])
        _measure_cpu(table, path, peers, folder / "ledger")
        _weigh(table, path, peers)
        _start(table, [partial(ours, path, DEVICES), *peers])
    report(
        f"What gpugauge costs, its goals, a server in C and nvitop-exporter, {DEVICES} H100 with {PROCESSES} processes",
        table.rows,
        "python -m qa.bench.goals",
        [
            "Without the time and the memory of the simulated library. The oldest value is that of the values of GPUs "
            "which are read every 5 s or more often; those of the group slow are read every 30 s. Memory is that of "
            f"one program that runs alone, after {SCRAPES:,} scrapes. A start is the median of {STARTS}."
        ],
        figures=table.figures,
    )


def _measure_cpu(table: Table, path: str, peers: list[Start], folder: Path) -> None:
    """Measure ours and the peers at the same time, and the ages of the values that ours serves."""
    folder.mkdir()
    price = ledger.price(folder)
    os.environ[CLOCK] = ""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(ours(path, DEVICES, ledger=folder))
        del os.environ[CLOCK]
        programs = (daemon, *(stack.enter_context(start(ledger=folder)) for start in peers))
        bodies = _recorded(daemon)
        time.sleep(WARM_UP_SECONDS)
        for every, (seconds, goal) in CPU.items():
            bodies.clear()
            sums: list[dict[int, ledger.Sum]] = []
            found = spent(programs, seconds, every, lambda sums=sums: sums.append(ledger.read(folder)))  # type: ignore[misc]  # the lambda has a default
            values = [_own(found[program.name], sums, price, seconds) for program in programs]
            phase = "idle" if every is None else f"scraped each {every:g} s"
            key = "idle" if every is None else f"{every:g}s"
            table.add(f"cpu-{key}", f"CPU seconds a minute, {phase}", goal, *values)
            if every == 15.0:
                ages = [age for body in bodies for age in body]
                later = [age for body in bodies[LEARNED:] for age in body]
    table.add("oldest", "oldest value at a scrape each 15 s, s", OLDEST, max(ages))
    table.add("oldest-later", "the same, from the fifth scrape of the scraper on", OLDEST, max(later))
    table.figures["oldest-median"] = f"{statistics.median(ages):.2f}"


def _own(times: dict[int, float], sums: list[dict[int, ledger.Sum]], price: ledger.Price, seconds: float) -> float:
    """Return the CPU seconds a minute of a program's processes, less those inside of the simulated library."""
    library = [sums[1][pid].since(sums[0].get(pid, ledger.Sum(0.0, 0))) for pid in times if pid in sums[1]]
    return sum(times.values()) - sum(part.seconds + part.calls * price.beside for part in library) * 60 / seconds


def _recorded(program: Program) -> list[list[float]]:
    """Return a list that gets the ages of the values of each further scrape of a program, with `CLOCK`."""
    scrape, found = program.scrape, list[list[float]]()

    def noted(connection: http.client.HTTPConnection) -> bytes:
        now, body = time.monotonic(), scrape(connection)
        found.append([now - float(value) for value in _ENERGY.findall(gzip.decompress(body))])
        return body

    program.scrape = noted  # type: ignore[method-assign]  # a stand-in
    return found


def _weigh(table: Table, path: str, peers: list[Start]) -> None:
    """Measure the memory of one program after the other, each alone."""
    starts: list[Start] = [partial(ours, path, DEVICES), *peers]
    sizes, receiver, library = [], 0.0, weight(path)
    for start in starts:
        with start() as program, contextlib.closing(program.connect()) as connection:
            for _ in range(SCRAPES):
                program.scrape(connection)
                time.sleep(SCRAPE_PAUSE_SECONDS)
            found = program.pss_megabytes()
            sizes.append(sum(found.values()) - (0.0 if program.name == FLOOR else library))
            receiver += sum(size for pid, size in found.items() if is_receiver(pid))
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
