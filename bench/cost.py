"""CPU seconds a minute and proportional memory: idle, and scraped each 15 s and each second, ours beside
nvitop-exporter's on the same simulated library, at the same time. What they spend inside that library is told apart.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import ledger
from bench.measure import Program, nvitop_exporter, ours, series
from bench.nodes import node
from bench.report import report
from bench.weight import weight

DEVICES, PROCESSES = 8, 24
# Seconds measured by seconds between two scrapes.
PHASES = {None: 30.0, 15.0: 45.0, 1.0: 30.0}
# A daemon that somebody has just looked at is watched for a while (gpugauge.forecast), and so is one whose scraper has
# no rhythm yet: it has one after three scrapes, and is awaited for a while longer.
WARM, SETTLING = 20.0, 3.6
EACH_SECOND = "--sampling.idle-interval-seconds=1"
WITHOUT = ", without the simulated library"


def spent(
    programs: tuple[Program, ...], seconds: float, every: float | None, look: Callable[[], object] = lambda: None
) -> dict[str, dict[int, float]]:
    """Let the programs run beside each other; return CPU seconds a minute by program and pid. `look` is called when
    the measurement begins and when it ends.
    """
    stop = threading.Event()

    def scrape(program: Program, every: float) -> None:
        connection = program.connect()
        while not stop.wait(every):
            program.scrape(connection)

    threads = [threading.Thread(target=scrape, args=[p, every]) for p in programs] if every else []
    for thread in threads:
        thread.start()
    if every:
        time.sleep(SETTLING * every)
    look()
    before = {p.name: p.cpu_seconds() for p in programs}
    time.sleep(seconds)
    look()
    after = {p.name: p.cpu_seconds() for p in programs}
    stop.set()
    for thread in threads:
        thread.join()
    return {
        name: {pid: (value - before[name].get(pid, 0.0)) * 60 / seconds for pid, value in times.items()}
        for name, times in after.items()
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name, node(DEVICES, PROCESSES) as path:
        folder = Path(name)
        price, megabytes = ledger.price(folder), weight(path)
        with ours(path, DEVICES, ledger=folder) as daemon:
            with (
                ours(path, DEVICES, EACH_SECOND, name="gpugauge, a tick each second", ledger=folder) as eager,
                nvitop_exporter(path, DEVICES, ledger=folder) as peer,
            ):
                programs = (daemon, eager, peer)
                time.sleep(WARM)
                phases = {
                    _phase(every): _told_apart(programs, seconds, every, folder, price)
                    for every, seconds in PHASES.items()
                }
                rows = [row for program in programs for row in _rows(program, phases)]
            _weigh(rows, daemon, megabytes)
        with nvitop_exporter(path, DEVICES) as peer:
            time.sleep(WARM)
            _weigh(rows, peer, megabytes)
    report(
        f"CPU seconds a minute and memory on {DEVICES} H100 with {PROCESSES} processes",
        rows,
        "python -m bench.cost",
        [*_ratios(rows, peer.name), _contents(price, megabytes)],
    )


def _phase(every: float | None) -> str:
    return "idle" if every is None else f"scraped each {every:g} s"


def _told_apart(
    programs: tuple[Program, ...], seconds: float, every: float | None, folder: Path, price: ledger.Price
) -> dict[int, tuple[float, float]]:
    """Return by pid CPU seconds a minute without what the ledger takes, and those of them in the simulated library."""
    looks: list[dict[int, ledger.Sum]] = []
    found = spent(programs, seconds, every, lambda: looks.append(ledger.read(folder)))
    begun, ended = looks
    told = {}
    for name, times in found.items():
        if not ended.keys() & times.keys():
            raise SystemExit(f"{name} keeps no ledger of the simulated library")
    for pid, cpu in (item for times in found.values() for item in times.items()):
        library = ended[pid].since(begun[pid]) if pid in ended else ledger.Sum(0.0, 0)  # a parent calls nothing
        inside = (library.seconds - library.calls * price.inside) * 60 / seconds
        told[pid] = (cpu - library.calls * (price.inside + price.beside) * 60 / seconds, inside)
    return told


def _parts(program: Program) -> dict[str, list[int]]:
    """Return the processes by part; parts of one process are not told."""
    pids, parent = program.pids(), program.process.pid
    workers = [pid for pid in pids if pid != parent]
    return {"all": pids} | ({"parent": [parent], "worker": workers} if workers else {})


def _rows(program: Program, phases: dict[str, dict[int, tuple[float, float]]]) -> Iterator[dict[str, Any]]:
    for part, pids in _parts(program).items():
        row: dict[str, Any] = {"exporter": program.name, "part": part}
        row["series"] = series(program.plain()) if part == "all" else ""
        cpu = {phase: sum(told[pid][0] for pid in pids) for phase, told in phases.items()}
        yield row | cpu | {"PSS MB": ""}
        if part != "parent":
            own = {phase: cpu[phase] - sum(told[pid][1] for pid in pids) for phase, told in phases.items()}
            yield row | own | {"part": part + WITHOUT, "series": "", "PSS MB": ""}


def _weigh(rows: list[dict[str, Any]], program: Program, megabytes: float) -> None:
    """Enter the memory of a program that runs alone: others like it would share its pages."""
    sizes = program.pss_megabytes()
    for part, pids in _parts(program).items():
        for row in rows:
            if row["exporter"] == program.name and row["part"] in {part, part + WITHOUT}:
                row["PSS MB"] = sum(sizes[pid] for pid in pids) - (megabytes if row["part"] != part else 0.0)


def _ratios(rows: list[dict[str, Any]], peer: str) -> Iterator[str]:
    """Say how the exporters' CPU compares, with and without the simulated library."""
    by_part = {(row["exporter"], row["part"]): row for row in rows}
    for (name, part), row in by_part.items():
        other = by_part.get((peer, part))
        if name != peer and other:
            shares = ", ".join(f"{row[_phase(every)] / other[_phase(every)]:.2f} {_phase(every)}" for every in PHASES)
            yield f"{name}, {part}: of {peer}'s CPU {shares}."


def _contents(price: ledger.Price, megabytes: float) -> str:
    whole = (price.inside + price.beside) * 1e6
    return (
        f"What a call of the library takes is counted around it (bench.ledger); the counting itself, {whole:.1f} µs a "
        "call, was measured on a function that does nothing, and taken off each figure, times the calls. The library "
        f"adds {megabytes:.1f} MB to a process, measured once, as loaded. Memory is that of one exporter "
        "with none beside it."
    )


if __name__ == "__main__":
    main()
