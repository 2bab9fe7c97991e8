"""Where the start, the memory and the idle CPU time of gpugauge go: the parts of what qa.bench.goals measures.

The start by what is imported (`python -X importtime`), memory as the private memory that each import adds to a fresh
interpreter, and the CPU time of each thread, which qa.bench.ours writes on SIGUSR2.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qa.bench import figures, reachable
from qa.bench.cost import SETTLING_INTERVALS, WARM_UP_SECONDS
from qa.bench.goals import is_receiver
from qa.bench.measure import Program, installed, ours, scraped
from qa.bench.nodes import node
from qa.bench.ours import THREADS
from qa.bench.report import report

COMMAND = "python -m qa.bench.parts"
DEVICES, PROCESSES = 8, 24
RUNS = 5
DAEMON, WORKER, RECEIVER = "gpugauge.daemon.serve", "gpugauge.driver.nvidia.worker", "gpugauge.sessions.receiver.main"
# Modules that are imported one after the other, with the process that needs them.
STAGES = {
    "daemon": ["", "asyncio", "tornado.iostream", "h11", DAEMON],
    "worker": ["", "json", "gpugauge.driver.worker", "gpugauge.driver.nvidia.binding", WORKER],
    "receiver": ["", RECEIVER],
}
PHASES = {None: 60.0, 15.0: 60.0, 1.0: 30.0}  # seconds measured, by seconds between two scrapes
_SERVER = {"asyncio", "concurrent", "ssl", "_ssl", "_asyncio", "socket", "_socket", "selectors", "http"}
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
_FIRST_SCAN = re.compile(r'^gpugauge_collector_duration_seconds\{collector="host"\} (\S+)', re.MULTILINE)
_STAGE = """
import gc, sys
def private():
    gc.collect()
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
before = 0.0
for module in sys.argv[1:]:
    if module:
        __import__(module)
    now = private()
    print(now - before)
    before = now
"""
_DATACLASSES = """
import dataclasses, time
process, spent = dataclasses._process_class, []
def timed(*arguments, **more):
    began = time.perf_counter()
    made = process(*arguments, **more)
    spent.append(time.perf_counter() - began)
    return made
dataclasses._process_class = timed
import {module}
print(1000 * sum(spent))
"""


# What a daemon would save without some modules, which are replaced by empty ones, or without docstrings and assertions.
SAVINGS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "without docstrings and assertions (-OO)": ("-OO",),
    "without tornado": ("tornado", "tornado.iostream"),
    "without tornado and OpenSSL's module": ("tornado", "tornado.iostream", "ssl"),
}
_WITHOUT = """
import gc, sys, time, types
class Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {{}})
for name in sys.argv[1:]:
    sys.modules[name] = Empty(name)
began = time.process_time()
import {module}
spent = time.process_time() - began
gc.collect()
with open("/proc/self/smaps_rollup") as lines:
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
print(1000 * spent, private / 1024)
"""


def main() -> None:
    _imports()
    _memory()
    server = _savings()
    with node(DEVICES, PROCESSES) as path:
        scans = _threads(path)
        first = _first_scan(path)
    saved = reachable.Saved(server=server, scans=scans, first_scan=first)
    report(
        "Goals, and the nearest figures that could be reached",
        reachable.rows(figures.read("goals"), figures.read("cost"), saved),
        COMMAND,
        [reachable.NOTE],
        name="reachable",
    )


def _imports() -> None:
    """Report the milliseconds of the imports of daemon and worker, by origin."""
    rows: list[dict[str, Any]] = []
    for part, module in (("daemon", DAEMON), ("worker", WORKER)):
        runs = sorted((_import_times(module) for _ in range(RUNS)), key=lambda run: sum(run.values()))
        by_origin = runs[RUNS // 2]
        making = float(_python("-c", _DATACLASSES.format(module=module)))
        rows.append(
            {"process": part, "all": sum(by_origin.values()), **by_origin, "of all: making dataclasses": making}
        )
    made = {"imports": f"{rows[0]['all']:.0f}", "dataclasses": f"{rows[0]['of all: making dataclasses']:.0f}"}
    report("Imports of a start, ms", rows, COMMAND, name="imports", figures=made)


def _import_times(module: str) -> dict[str, float]:
    """Return the milliseconds of the imports of a module by origin."""
    found = dict.fromkeys(("gpugauge", "asyncio, sockets, TLS", "other packages", "the rest of the library"), 0.0)
    for microseconds, name in _LINE.findall(_python("-X", "importtime", "-c", f"import {module}", errors=True)):
        package = name.partition(".")[0]
        if package == "gpugauge":
            origin = "gpugauge"
        elif package in _SERVER:
            origin = "asyncio, sockets, TLS"
        else:
            origin = "the rest of the library" if package in sys.stdlib_module_names else "other packages"
        found[origin] += int(microseconds) / 1000
    return found


def _memory() -> None:
    """Report the private memory that the imports of each process add."""
    rows: list[dict[str, Any]] = []
    for part, modules in STAGES.items():
        for module, megabytes in zip(modules, _python("-c", _STAGE, *modules).split(), strict=True):
            rows.append(
                {"process": part, "after the import of": module or "nothing", "private MB more": float(megabytes)}
            )
    bare = sum(row["private MB more"] for row in rows if row["after the import of"] == "nothing")
    report(
        "Private memory of each process, before it does anything",
        rows,
        COMMAND,
        name="memory",
        figures={"bare": f"{bare:.0f}"},
    )


def _savings() -> float:
    """Report what the imports of the daemon would take in other ways; return the MB without tornado and OpenSSL."""
    rows: list[dict[str, Any]] = []
    for name, changed in SAVINGS.items():
        options, without = (changed, ()) if changed == ("-OO",) else ((), changed)
        runs = [_python(*options, "-c", _WITHOUT.format(module=DAEMON), *without).split() for _ in range(RUNS)]
        milliseconds, megabytes = (statistics.median(map(float, run)) for run in zip(*runs, strict=True))
        rows.append({"imports of the daemon": name, "CPU ms": milliseconds, "private MB": megabytes})
    found = {
        f"saved-{key}": rows[0]["private MB"] - row["private MB"]
        for key, row in zip(("optimized", "tornado", "ssl"), rows[1:], strict=True)
    }
    report(
        "What would be saved",
        rows,
        COMMAND,
        name="savings",
        figures={key: f"{megabytes:.1f}" for key, megabytes in found.items()},
    )
    return float(found["saved-ssl"])


def _threads(path: str) -> float:
    """Report the CPU time of each thread of the daemon, and of its child processes; return that of the scans of /proc
    without scrapes, in seconds a minute.
    """
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[THREADS] = str(Path(folder) / "threads")
        with ours(path, DEVICES) as daemon:
            file = Path(os.environ.pop(THREADS))
            time.sleep(WARM_UP_SECONDS)
            for every, seconds in PHASES.items():
                with scraped([daemon], every) if every else contextlib.nullcontext():
                    time.sleep(SETTLING_INTERVALS * every if every else 0.0)
                    before = _clocks(daemon, file)
                    time.sleep(seconds)
                    after = _clocks(daemon, file)
                phase = f"scraped each {every:g} s" if every else "idle"
                for thread, spent in after.items():
                    row = rows.setdefault(thread, {"thread": thread})
                    row[phase] = (spent - before.get(thread, 0.0)) * 60 / seconds
    report("CPU seconds a minute by thread", list(rows.values()), COMMAND, name="threads")
    return float(rows["host"]["idle"])


def _first_scan(path: str) -> float:
    """Return the seconds of the first scan of /proc, for which the first tick waits."""
    found: list[float] = []
    for _ in range(RUNS):
        with ours(path, DEVICES) as daemon:
            found += map(float, _FIRST_SCAN.findall(daemon.plain()))
    return statistics.median(found)


def _clocks(daemon: Program, file: Path) -> dict[str, float]:
    """Return the CPU seconds of the daemon's threads and of its child processes, by name."""
    file.unlink(missing_ok=True)
    daemon.process.send_signal(signal.SIGUSR2)
    while not file.exists():
        time.sleep(0.01)
    found: dict[str, float] = json.loads(file.read_text())
    for pid, spent in daemon.cpu_seconds().items():
        if pid != daemon.process.pid:
            found["receiver" if is_receiver(pid) else "worker, with the simulated library"] = spent
    return found


def _python(*arguments: str, errors: bool = False) -> str:
    """Return what an interpreter writes, with compiled modules."""
    command = [sys.executable, *arguments]
    for _ in range(2):  # the first compiles
        done = subprocess.run(command, env=installed(os.environ), capture_output=True, text=True, check=True)
    return done.stderr if errors else done.stdout


if __name__ == "__main__":
    figures.run("parts", main)
