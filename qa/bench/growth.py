"""Cost by size of the node: CPU, bytes, latency and memory by GPUs and processes, scraped each second."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from qa.bench import figures, ledger
from qa.bench.cost import separated
from qa.bench.measure import Program, ours, percentile, series
from qa.bench.nodes import node
from qa.bench.report import report

DEVICES = (1, 8, 16, 64)
PROCESSES = (24, 200)
SECONDS, SCRAPES = 20.0, 100
CPU = "CPU s/min"


def main() -> None:
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        for processes in PROCESSES:
            with tempfile.TemporaryDirectory() as name, node(devices, processes) as path:
                folder = Path(name)
                price = ledger.price(folder)
                with ours(path, devices, ledger=folder) as daemon:
                    rows.append({"devices": devices, "processes": processes, **measure(daemon, folder, price)})
    report(
        "Growth, scraped each second, without the simulated library",
        rows,
        "python -m qa.bench.growth",
        ["Linear or better where µs a series does not rise with more GPUs or more processes."],
        figures={"least": f"{rows[0][CPU]:.2f}", "most": f"{rows[-len(PROCESSES)][CPU]:.2f}"},
    )


def measure(daemon: Program, folder: Path, price: ledger.Price) -> dict[str, Any]:
    found = separated((daemon,), SECONDS, 1.0, folder, price)
    cpu = {pid: every - inside for pid, (every, inside) in found.items()}
    parent = cpu[daemon.process.pid]
    connection, latencies = daemon.connect(), []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        body = daemon.scrape(connection)
        latencies.append(1000 * (time.perf_counter() - began))
        time.sleep(0.02)
    number = series(daemon.plain())
    return {
        "series": number,
        "bytes, gzip": len(body),
        CPU: sum(cpu.values()),
        "of the parent": parent,
        "parent µs a series": 1e6 / 60 * parent / number,
        "p50 ms": percentile(latencies, 0.5),
        "p99 ms": percentile(latencies, 0.99),
        "PSS MB": sum(daemon.pss_megabytes().values()),
    }


if __name__ == "__main__":
    figures.run("growth", main)
