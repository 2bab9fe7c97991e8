"""Latency of a scrape: gpugauge, servers of our body as a file, and nvitop-exporter, alternately.

Over a connection that stays open, over a new one for each scrape, and with all cores busy. The file is served by a
program in Go, and by nginx (Debian's packages `golang-go` and `nginx-light`); without both, by our own server in a
process that does nothing else. Then scrapes without a period, which wait for a reading of the driver. --write writes
the result into qa/bench/results and docs/proof/performance.md.
"""

from __future__ import annotations

import contextlib
import gzip
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from qa.bench import figures
from qa.bench.measure import Program, nvitop_exporter, ours, percentile, running, series
from qa.bench.nodes import node
from qa.bench.report import report

COMMAND = "python -m qa.bench.scrape"
DEVICES, PROCESSES = 8, 64
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
SCRAPES, PAUSE_SECONDS = 1000, 0.003  # of each program, and between two scrapes
IRREGULAR, GAP_SECONDS = 60, (0.5, 3.0)
BESIDE_PEER = "quiet, beside nvitop-exporter"
SETTLING_SECONDS = 8  # in which every group is read
_NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log /dev/null; master_process off;
events {{ worker_connections 64; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port}; root {folder};
    location /metrics {{ default_type text/plain; add_header Content-Encoding gzip; }}
  }}
}}
"""


@contextlib.contextmanager
def static_files(body: bytes) -> Iterator[list[Program]]:
    """Serve a constant body by each server of files that the machine has; the first is compared with."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "metrics").write_bytes(body)
        yield [
            stack.enter_context(running(f"static file{served_by}", command, lambda _: True))
            for served_by, command in servers(folder)
        ]


def servers(folder: Path) -> list[tuple[str, Callable[[int], list[str]]]]:
    """Return each server of the file `metrics` in a folder: the end of its name, and its command line for a port."""
    file, found = str(folder / "metrics"), list[tuple[str, Callable[[int], list[str]]]]()
    if go := shutil.which("go"):
        program = str(folder / "static")
        subprocess.run([go, "build", "-o", program, str(Path(__file__).with_name("static.go"))], check=True)
        found.append((", Go", lambda port: [program, file, str(port)]))
    if nginx := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"):

        def command(port: int) -> list[str]:
            config = folder / "nginx.conf"
            config.write_text(_NGINX.format(folder=folder, port=port))
            return [nginx, "-c", str(config), "-p", str(folder)]

        found.append((", nginx", command))
    return found or [("", lambda port: [sys.executable, "-m", "qa.bench.still", file, str(port)])]


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep all cores busy."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        pass


def latencies(programs: Sequence[Program], *, kept: bool) -> dict[str, list[float]]:
    """Return the milliseconds of each scrape by program."""
    found: dict[str, list[float]] = {program.name: [] for program in programs}
    connections = {program.name: program.connect() for program in programs}
    for _ in range(SCRAPES):
        for program in programs:
            start = time.perf_counter()
            connection = connections[program.name] if kept else program.connect()
            program.scrape(connection)
            found[program.name].append((time.perf_counter() - start) * 1000)
            if not kept:
                connection.close()
            time.sleep(PAUSE_SECONDS)
    return found


def irregular(daemon: Program) -> dict[str, Any]:
    """Return a row of scrapes without a period: their latencies, and the ages of the snapshots that they get."""
    random, connection = Random(1), daemon.connect()
    found, ages = [], []
    for _ in range(IRREGULAR):
        time.sleep(random.uniform(*GAP_SECONDS))
        start, began = time.perf_counter(), time.time()
        body = gzip.decompress(daemon.scrape(connection)).decode()
        found.append((time.perf_counter() - start) * 1000)
        stamp = re.search(r"^gpugauge_snapshot_timestamp_seconds (\S+)", body, re.MULTILINE)
        ages.append(began - float(stamp[1]) if stamp else float("nan"))
    newest = {"older than 50 ms": sum(age > 0.05 for age in ages), "oldest snapshot s": max(0.0, *ages)}
    return {"scrapes": IRREGULAR} | _found(found, ("p50", "p99")) | {"most ms": max(found)} | newest


def _found(values: list[float], names: Sequence[str] = tuple(_SHARES)) -> dict[str, float]:
    return {f"{name} ms": percentile(values, _SHARES[name]) for name in names}


def main() -> None:
    rows: list[dict[str, Any]] = []
    unpredicted = []
    with node(DEVICES, PROCESSES) as path, ours(path, DEVICES) as daemon:
        time.sleep(SETTLING_SECONDS)
        with static_files(daemon.scrape(daemon.connect())) as still:
            for cores, load in (("quiet", contextlib.nullcontext()), ("all busy", busy_cores())):
                with load:
                    for kept in (True, False):
                        connection = "kept" if kept else "new"
                        rows += _rows((daemon, *still), {"cores": cores, "connection": connection}, kept=kept)
                    unpredicted.append({"cores": cores} | irregular(daemon))
        with nvitop_exporter(path, DEVICES) as peer:
            time.sleep(SETTLING_SECONDS)
            rows += _rows((daemon, peer), {"cores": BESIDE_PEER, "connection": "kept"}, kept=True)
    ratio = {(row["cores"], row["connection"], row["served"]): row["p99 / the second's"] for row in rows}
    report(
        f"A scrape of {DEVICES} H100 with {PROCESSES} processes, {SCRAPES} of each by turns",
        rows,
        COMMAND,
        name="latency",
        figures={  # our p99 as a multiple of the static file's, and the peer's as a multiple of ours
            "file": f"{ratio['quiet', 'kept', daemon.name]:.2f}",
            "file-new": f"{ratio['quiet', 'new', daemon.name]:.2f}",
            "file-busy": f"{ratio['all busy', 'kept', daemon.name]:.2f}",
            "peer": f"{1 / ratio[BESIDE_PEER, 'kept', daemon.name]:.0f}",
        },
    )
    low, high = GAP_SECONDS
    report(
        f"Scrapes without a period, {low:g} to {high:g} s apart, which wait for a reading",
        unpredicted,
        COMMAND,
        name="waiting",
        figures={"waiting": f"{unpredicted[0]['p50 ms']:.1f}"},
    )


def _rows(programs: Sequence[Program], condition: dict[str, str], *, kept: bool) -> list[dict[str, Any]]:
    found = latencies(programs, kept=kept)
    return [condition | _row(program, found[program.name], found[programs[1].name]) for program in programs]


def _row(program: Program, values: list[float], other: list[float]) -> dict[str, Any]:
    body = program.scrape(program.connect())
    text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    row = {"served": program.name, "series": series(text.decode()), "bytes": len(text)}
    ratio = percentile(values, _SHARES["p99"]) / percentile(other, _SHARES["p99"])
    return row | _found(values) | {"p99 / the second's": ratio}


if __name__ == "__main__":
    figures.run("scrape", main)
