"""The programs under measurement, their CPU time, memory and latencies."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qa.bench.ledger import VARIABLE
from qa.bench.report import report

__all__ = [
    "HEADERS",
    "Program",
    "free_port",
    "gpugauge",
    "installed",
    "nvitop_exporter",
    "ours",
    "percentile",
    "report",
    "running",
    "scraped",
    "series",
]

# The headers of a scrape by Prometheus.
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
    "Accept-Encoding": "gzip",
}
_CPUCLOCK_SCHED = 2  # linux/include/linux/posix-timers.h: the scheduler's count, in nanoseconds
_MAX_START_SECONDS = 60.0


@dataclass
class Program:
    """A running exporter: its first process, and the port and path of its metrics."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    path: str = "/metrics"
    ready_seconds: float = 0.0  # from its start to the first scrape that shows every device

    def pids(self) -> list[int]:
        """Return the process and its children."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
        return found

    def cpu_seconds(self) -> dict[int, float]:
        """Return user and system time by pid, as the scheduler counts it.

        /proc/PID/stat counts by clock ticks and misses work between two ticks, such as that of a sampler.
        """
        return {pid: time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) for pid in self.pids()}

    def pss_megabytes(self) -> dict[int, float]:
        """Return the proportional set size (PSS) by pid."""
        sizes = {}
        for pid in self.pids():
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    sizes[pid] = int(line.split()[1]) / 1024
        return sizes

    def scrape(self, connection: http.client.HTTPConnection) -> bytes:
        """Return the body of a scrape with the headers of Prometheus, over a kept connection."""
        connection.request("GET", self.path, headers=HEADERS)
        return connection.getresponse().read()

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection for several scrapes."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def plain(self) -> str:
        """Return the metrics in the text format, uncompressed."""
        connection = self.connect()
        try:
            connection.request("GET", self.path)
            return connection.getresponse().read().decode(errors="replace")  # nginx has the body in gzip only
        finally:
            connection.close()


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextlib.contextmanager
def scraped(programs: Sequence[Program], interval: float) -> Iterator[None]:
    """Scrape each program at the interval in seconds, from a thread each."""
    stop = threading.Event()

    def scrape(program: Program) -> None:
        connection = program.connect()
        while not stop.wait(interval):
            program.scrape(connection)

    threads = [threading.Thread(target=scrape, args=[program]) for program in programs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def running(
    name: str, command: Callable[[int], list[str]], complete: Callable[[str], bool], ledger: Path | None = None
) -> Iterator[Program]:
    """Run a program, and yield it when its metrics are complete.

    `command` returns the command line for a port. With the folder `ledger`, the program records there the time that it
    spends in the simulated library (qa.bench.ledger).
    """
    port = free_port()
    began = time.monotonic()
    environment = installed(os.environ) | ({VARIABLE: str(ledger)} if ledger else {})
    process = subprocess.Popen(command(port), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    program = Program(name, process, port)
    try:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if complete(program.plain()):
                    break
            if process.poll() is not None or time.monotonic() - began > _MAX_START_SECONDS:
                raise SystemExit(f"{name} does not serve: {' '.join(command(port))}")
            time.sleep(0.005)
        program.ready_seconds = time.monotonic() - began
        yield program
    finally:
        process.terminate()
        process.wait(10)


def installed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a cache of compiled modules, as installed programs have one.

    The benches run gpugauge from the source tree, where modules may be compiled at each start.
    """
    cache = Path(tempfile.gettempdir()) / f"gpugauge-bench-{os.getuid()}-pycache"
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(cache)}


@contextlib.contextmanager
def gpugauge(scenario: str, *flags: str) -> Iterator[Program]:
    """Run our daemon on a scenario (`--simulate`), and yield it when devices are in the scrape."""
    with tempfile.TemporaryDirectory() as folder:
        program = [str(Path(sys.executable).parent / "gpugauge"), "serve", f"--simulate={scenario}"]
        program += [f"--hook.socket={folder}/hook.sock", *flags]
        with running("gpugauge", _listening(program), lambda text: "gpu_memory_used_bytes{" in text) as started:
            yield started


@contextlib.contextmanager
def ours(
    simulation: str, devices: int, *flags: str, name: str = "gpugauge", ledger: Path | None = None
) -> Iterator[Program]:
    """Run our daemon as on a real node; its worker has the simulated library (qa.bench.ours, qa.bench.nodes.node)."""
    with tempfile.TemporaryDirectory() as folder:
        # The GPUs of the library are not remembered as those of this machine.
        own = [f"--hook.socket={folder}/hook.sock", f"--driver.state-file={folder}/gpus.json"]
        program = [sys.executable, "-m", "qa.bench.ours", simulation, "serve", *own, *flags]
        with running(name, _listening(program), _shows("gpu_memory_used_bytes{", devices), ledger) as started:
            yield started


@contextlib.contextmanager
def nvitop_exporter(simulation: str, devices: int, ledger: Path | None = None) -> Iterator[Program]:
    """Run nvitop-exporter on the same library, with its default interval of one second."""
    program = [sys.executable, "-m", "qa.bench.peer", simulation, "--bind-address", "127.0.0.1", "--interval", "1.0"]
    command: Callable[[int], list[str]] = lambda port: [*program, "--port", str(port)]  # noqa: E731  (typed)
    with running("nvitop-exporter", command, _shows("gpu_utilization_Percentage{", devices), ledger) as started:
        yield started


def _listening(program: list[str]) -> Callable[[int], list[str]]:
    return lambda port: [*program, f"--web.listen-address=127.0.0.1:{port}"]


def _shows(series: str, number: int) -> Callable[[str], bool]:
    return lambda text: text.count(series) >= number


def series(text: str) -> int:
    """Return the number of samples in the text format."""
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
