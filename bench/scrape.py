"""Latency and size of a scrape: gpugauge, nvitop-exporter and a static file, alternately.

The file is our body, served by our server in a process that does nothing else: the lower limit of the latency.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from bench import figures
from bench.measure import Program, nvitop_exporter, ours, percentile, running, series
from bench.nodes import node
from bench.report import report

DEVICES, PROCESSES = 8, 64
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
SCRAPES, PAUSE_SECONDS = 1000, 0.003  # of each program, and between two scrapes


@contextlib.contextmanager
def static_file(body: bytes) -> Iterator[Program]:
    """Serve a constant body."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        program = [sys.executable, "-m", "bench.still", file.name]
        with running("static file", lambda port: [*program, str(port)], lambda _: True) as started:
            yield started


def main() -> None:
    latencies: dict[str, list[float]] = {}
    with node(DEVICES, PROCESSES) as path, ours(path, DEVICES) as daemon, nvitop_exporter(path, DEVICES) as peer:
        time.sleep(8)  # every group has been read
        with static_file(daemon.scrape(daemon.connect())) as still:
            programs = (daemon, still, peer)
            connections = {program.name: program.connect() for program in programs}
            for _ in range(SCRAPES):
                for program in programs:
                    start = time.perf_counter()
                    program.scrape(connections[program.name])
                    latencies.setdefault(program.name, []).append((time.perf_counter() - start) * 1000)
                    time.sleep(PAUSE_SECONDS)
            rows = [_row(program, latencies) for program in programs]
    report(
        f"A scrape of {DEVICES} H100 with {PROCESSES} processes, {SCRAPES} of each by turns",
        rows,
        "python -m bench.scrape",
        figures={
            "file": f"{rows[0]['p99 ms'] / rows[1]['p99 ms']:.2f}",  # p99 as a multiple of the static file's
            "peer": f"{rows[2]['p99 ms'] / rows[0]['p99 ms']:.0f}",  # the peer's p99 as a multiple of ours
        },
    )


def _row(program: Program, latencies: dict[str, list[float]]) -> dict[str, Any]:
    body = program.scrape(program.connect())
    text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    found = {f"{name} ms": percentile(latencies[program.name], share) for name, share in _SHARES.items()}
    still = percentile(latencies["static file"], _SHARES["p99"])
    row = {"served": program.name, "series": series(text.decode()), "bytes": len(text)}
    return row | {"bytes, gzip": len(gzip.compress(text)), **found, "p99 / file's": found["p99 ms"] / still}


if __name__ == "__main__":
    figures.run("scrape", main)
