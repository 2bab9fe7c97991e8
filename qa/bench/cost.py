"""CPU seconds a minute and proportional memory of gpugauge and nvitop-exporter on the same simulated library.

Both run at the same time: idle, scraped each 15 s, and scraped each second. The time inside the library is separated.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qa.bench import figures, ledger
from qa.bench.measure import Program, nvitop_exporter, ours, scraped, series
from qa.bench.nodes import node
from qa.bench.report import report
from qa.bench.weight import weight

DEVICES, PROCESSES = 8, 24
# Seconds measured by seconds between two scrapes.
PHASES = {None: 30.0, 15.0: 45.0, 1.0: 30.0}
# After a scrape the daemon ticks each second for a while (gpugauge.base.forecast), as it does until it knows the
# scraper's interval, which takes four scrapes.
WARM_UP_SECONDS, SETTLING_INTERVALS = 20.0, 4.6
# Before memory is measured; it grows until the caches of connections and bodies are full.
SCRAPES, PAUSE_SECONDS = 1000, 0.005
MAX_MEGABYTES = 45.0  # of all processes of ours, without the simulated library
RECEIVER = "gpugauge.sessions.receiver"  # in its command line
EACH_SECOND = "--sampling.idle-interval-seconds=1"
WITHOUT = ", without the simulated library"


def spent(
    programs: tuple[Program, ...], seconds: float, every: float | None, record: Callable[[], object] = lambda: None
) -> dict[str, dict[int, float]]:
    """Return CPU seconds a minute by program and pid, of programs that run at the same time.

    `record` is called at the begin and at the end of the measurement.
    """
    with scraped(programs, every) if every else contextlib.nullcontext():
        if every:
            time.sleep(SETTLING_INTERVALS * every)
        record()
        before = {p.name: p.cpu_seconds() for p in programs}
        time.sleep(seconds)
        record()
        after = {p.name: p.cpu_seconds() for p in programs}
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
                time.sleep(WARM_UP_SECONDS)
                phases = {
                    _phase(every): separated(programs, seconds, every, folder, price)
                    for every, seconds in PHASES.items()
                }
                rows = [row for program in programs for row in _rows(program, phases)]
            _weigh(rows, daemon, megabytes)
        with nvitop_exporter(path, DEVICES) as peer:
            time.sleep(WARM_UP_SECONDS)
            _weigh(rows, peer, megabytes)
    report(
        f"CPU seconds a minute and memory on {DEVICES} H100 with {PROCESSES} processes",
        rows,
        "python -m qa.bench.cost",
        [*_ratios(rows, peer.name), _contents(price, megabytes)],
        figures=_figures(rows, daemon.name, peer.name),
    )


def _phase(every: float | None) -> str:
    return "idle" if every is None else f"scraped each {every:g} s"


def separated(
    programs: tuple[Program, ...], seconds: float, every: float | None, folder: Path, price: ledger.Price
) -> dict[int, tuple[float, float]]:
    """Return CPU seconds a minute by pid, without the time of the ledger: all, and inside the simulated library."""
    sums: list[dict[int, ledger.Sum]] = []
    found = spent(programs, seconds, every, lambda: sums.append(ledger.read(folder)))
    begun, ended = sums
    separated = {}
    for name, times in found.items():
        if not ended.keys() & times.keys():
            raise SystemExit(f"{name} keeps no ledger of the simulated library")
    for pid, cpu in (item for times in found.values() for item in times.items()):
        library = ended[pid].since(begun[pid]) if pid in ended else ledger.Sum(0.0, 0)  # a parent calls nothing
        inside = (library.seconds - library.calls * price.inside) * 60 / seconds
        separated[pid] = (cpu - library.calls * (price.inside + price.beside) * 60 / seconds, inside)
    return separated


def _parts(program: Program) -> dict[str, list[int]]:
    """Return the pids by part of the exporter; an exporter of one process has no parts."""
    pids, parent = program.pids(), program.process.pid
    receivers = [pid for pid in pids if RECEIVER in Path(f"/proc/{pid}/cmdline").read_text()]
    workers = [pid for pid in pids if pid != parent and pid not in receivers]
    return {"all": pids} | ({"parent": [parent], "worker": workers, "receiver": receivers} if workers else {})


def _rows(program: Program, phases: dict[str, dict[int, tuple[float, float]]]) -> Iterator[dict[str, Any]]:
    for part, pids in _parts(program).items():
        row: dict[str, Any] = {"exporter": program.name, "part": part}
        row["series"] = series(program.plain()) if part == "all" else ""
        cpu = {phase: sum(times[pid][0] for pid in pids) for phase, times in phases.items()}
        yield row | cpu | {"PSS MB": ""}
        if part not in {"parent", "receiver"}:  # these do not load the library
            own = {phase: cpu[phase] - sum(times[pid][1] for pid in pids) for phase, times in phases.items()}
            yield row | own | {"part": part + WITHOUT, "series": "", "PSS MB": ""}


def _weigh(rows: list[dict[str, Any]], program: Program, megabytes: float) -> None:
    """Scrape a program that runs alone, because a second one would share its memory, and set the memory in its rows."""
    connection = program.connect()
    for _ in range(SCRAPES):
        program.scrape(connection)
        time.sleep(PAUSE_SECONDS)
    connection.close()
    sizes = program.pss_megabytes()
    for part, pids in _parts(program).items():
        for row in rows:
            if row["exporter"] == program.name and row["part"] in {part, part + WITHOUT}:
                row["PSS MB"] = sum(sizes[pid] for pid in pids) - (megabytes if row["part"] != part else 0.0)


def _ratios(rows: list[dict[str, Any]], peer: str) -> Iterator[str]:
    """Yield a sentence for each ratio of CPU times, with and without the simulated library."""
    by_part = {(row["exporter"], row["part"]): row for row in rows}
    for (name, part), row in by_part.items():
        other = by_part.get((peer, part))
        if name != peer and other:
            shares = ", ".join(f"{row[_phase(every)] / other[_phase(every)]:.2f} {_phase(every)}" for every in PHASES)
            yield f"{name}, {part}: of {peer}'s CPU {shares}."


def _figures(rows: list[dict[str, Any]], name: str, peer: str) -> dict[str, str]:
    by_part = {(row["exporter"], row["part"]): row for row in rows}
    ours, other = by_part[name, "all" + WITHOUT], by_part[peer, "all" + WITHOUT]
    phases = {"idle": _phase(None), "15s": _phase(15.0), "1s": _phase(1.0)}
    found = {f"ratio-{key}": f"{ours[phase] / other[phase]:.2f}" for key, phase in phases.items()}
    whole = by_part[name, "all"]
    eager = by_part["gpugauge, a tick each second", "all" + WITHOUT]
    return found | {
        "ratio-each-second": f"{eager[phases['idle']] / other[phases['idle']]:.2f}",
        "memory": f"{whole['PSS MB']:.0f}",
        "memory-own": f"{ours['PSS MB']:.0f}",
        "memory-peer": f"{other['PSS MB']:.0f}",
        "core-15s": f"{100 * whole[phases['15s']] / 60:.1f}",  # percent of a core
    }


def _contents(price: ledger.Price, megabytes: float) -> str:
    whole = (price.inside + price.beside) * 1e6
    return (
        f"What a call of the library takes is counted around it (qa.bench.ledger); counting itself, {whole:.1f} µs a "
        "call, was measured on a function that does nothing, and taken off each figure, times the calls. The library "
        f"adds {megabytes:.1f} MB to a process, measured once, as loaded. Memory is that of one exporter "
        f"with none beside it, after {SCRAPES:,} scrapes. That of all processes of ours, without the simulated "
        f"library, has the target {MAX_MEGABYTES:g} MB."
    )


if __name__ == "__main__":
    figures.run("cost", main)
