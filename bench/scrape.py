"""Latency and size of a scrape, ours and nvitop-exporter's, on the same simulated node in alternating rounds."""

from __future__ import annotations

import gzip
import time
from typing import Any

from bench.measure import gpugauge, nvitop_exporter, percentile, report, series

ROUNDS, SCRAPES = 10, 100


def main(scenario: str = "bench-64") -> None:
    latencies: dict[str, list[float]] = {}
    rows = []
    with gpugauge(scenario) as ours, nvitop_exporter(scenario) as peer:
        programs = (ours, peer)
        connections = {program.name: program.connect() for program in programs}
        for _ in range(ROUNDS):
            for program in programs:
                for _ in range(SCRAPES):
                    start = time.perf_counter()
                    program.scrape(connections[program.name])
                    latencies.setdefault(program.name, []).append((time.perf_counter() - start) * 1000)
                    time.sleep(0.003)
        for program in programs:
            text, values = program.plain(), latencies[program.name]
            row: dict[str, Any] = {"exporter": program.name, "series": series(text), "bytes": len(text)}
            row["gzip bytes"] = len(gzip.compress(text.encode()))
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                row[f"{name} ms"] = percentile(values, share)
            rows.append(row)
    report(f"scrape of {scenario}", rows)


if __name__ == "__main__":
    main()
