"""Cost by size of the node: CPU, bytes, latency and memory by GPUs and processes, scraped each second."""

from __future__ import annotations

import time
from typing import Any

from qa.bench import figures
from qa.bench.measure import Program, ours, percentile, scraped, series
from qa.bench.nodes import node
from qa.bench.report import report

DEVICES = (1, 8, 16, 64)
PROCESSES = (0, 64, 512)
WARM_UP_SECONDS, SECONDS, SCRAPES = 5.0, 8.0, 100


def main() -> None:
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        for processes in PROCESSES:
            with node(devices, processes) as path, ours(path, devices) as daemon:
                rows.append({"devices": devices, "processes": processes, **measure(daemon)})
    report(
        "Growth: CPU in ms a second, scraped each second; the simulator is in the worker's",
        rows,
        "python -m qa.bench.growth",
        ["Linear or better where µs a series does not rise with more GPUs or more processes."],
        figures={"least": f"{rows[0]['parent ms']:.1f}", "most": f"{rows[-1]['parent ms']:.0f}"},
    )


def measure(daemon: Program) -> dict[str, Any]:
    with scraped([daemon], 1.0):
        time.sleep(WARM_UP_SECONDS)
        before = daemon.cpu_seconds()
        time.sleep(SECONDS)
        after = daemon.cpu_seconds()
    cpu = {pid: 1000 * (after[pid] - before[pid]) / SECONDS for pid in before}
    parent = cpu.pop(daemon.process.pid)
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
        "parent ms": parent,
        "worker ms": sum(cpu.values()),
        "parent µs a series": 1000 * parent / number,
        "p50 ms": percentile(latencies, 0.5),
        "p99 ms": percentile(latencies, 0.99),
        "PSS MB": sum(daemon.pss_megabytes().values()),
    }


if __name__ == "__main__":
    figures.run("growth", main)
