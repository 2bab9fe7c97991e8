"""What the benches share: the programs under measurement, their CPU time and memory, latencies, the printed result."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Program:
    """A running exporter: its first process and the address that it serves."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    path: str = "/metrics"
    started: float = 0.0

    def pids(self) -> list[int]:
        """Return the process and its children."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
        return found

    def cpu_seconds(self) -> dict[int, float]:
        """Return user + system time by pid; the clock tick (10 ms) is the resolution."""
        times = {}
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            times[pid] = (int(fields[11]) + int(fields[12])) / _TICK
        return times

    def pss_megabytes(self) -> dict[int, float]:
        """Return the proportional set size by pid."""
        sizes = {}
        for pid in self.pids():
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    sizes[pid] = int(line.split()[1]) / 1024
        return sizes

    def scrape(self, connection: http.client.HTTPConnection) -> bytes:
        """Ask as Prometheus does: over a kept connection, gzip, OpenMetrics preferred."""
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        connection.request("GET", self.path, headers={"Accept": accept, "Accept-Encoding": "gzip"})
        return connection.getresponse().read()

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection that is kept."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def plain(self) -> str:
        """Return the text format, not compressed."""
        connection = self.connect()
        connection.request("GET", self.path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(name: str, command: list[str], port: int, ready: str) -> Iterator[Program]:
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    program = Program(name, process, port, started=started)
    try:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if ready in program.plain():
                    break
            if process.poll() is not None or time.monotonic() - started > 30:
                raise SystemExit(f"{name} does not serve")
            time.sleep(0.01)
        yield program
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def gpugauge(scenario: str, *flags: str) -> Iterator[Program]:
    """Run our daemon on a scenario, until every device is in the scrape."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "gpugauge"), "serve", f"--web.listen-address=127.0.0.1:{port}"]
        command += [f"--simulate={scenario}", f"--hook.socket={folder}/hook.sock", *flags]
        with _running("gpugauge", command, port, "gpu_memory_used_bytes{") as program:
            yield program


@contextlib.contextmanager
def nvitop_exporter(scenario: str) -> Iterator[Program]:
    """Run nvitop-exporter on the same simulated driver, with its default interval of a second."""
    port = _free_port()
    command = [sys.executable, "-m", "bench.peer", scenario, "--port", str(port), "--bind-address", "127.0.0.1"]
    with _running("nvitop-exporter", [*command, "--interval", "1.0"], port, "gpu_utilization_Percentage{") as program:
        yield program


def series(text: str) -> int:
    """Count the samples of a text exposition."""
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def report(title: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table, or with --json as one JSON object with machine and versions."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    arguments, _ = parser.parse_known_args()
    cores = os.cpu_count()
    names = ("gpugauge", "nvitop-exporter", "nvidia-ml-py", "tornado", "torch")
    machine = {"python": platform.python_version(), "cores": cores, "kernel": platform.release()}
    versions = {name: version(name) for name in names}
    if arguments.json:
        print(json.dumps({"title": title, "date": time.strftime("%Y-%m-%d"), **machine, **versions, "rows": rows}))
        return
    print(f"# {title}")
    print("# " + ", ".join(f"{key} {value}" for key, value in {**machine, **versions}.items()))
    keys = list(rows[0])
    cells = [keys] + [[f"{row[k]:.4g}" if isinstance(row[k], float) else str(row[k]) for k in keys] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
