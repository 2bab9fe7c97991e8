"""Crowds at the port: thousands of slow connections, and many scrapers at once."""

from __future__ import annotations

import contextlib
import http.client
import resource
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qa.bench.measure import HEADERS
from qa.bench.prometheus import Prometheus, prometheus
from qa.torture.fault import Watch
from qa.torture.subject import Setting, Subject, subject
from qa.torture.truth import Judge

_DEVICES = 8
_SLOW_CONNECTIONS, _OPENED_PER_SECOND = 2000, 500  # of slowhttptest
_SCRAPERS, _PAUSE_SECONDS = 50, 0.2
_WARM_UP_SECONDS = 400.0  # before memory is measured: the histories of the values fill
# The resident memory varies by this with the interpreter's allocator, without a leak.
_MAX_MIB_PER_MINUTE = 0.5

# What is slow, and the options of slowhttptest(1) for it.
_MODES = {
    "headers, a line every 5 s": ["-H", "-i", "5", "-x", "24"],
    "body, some bytes every 5 s": ["-B", "-i", "5", "-x", "10", "-s", "8192", "-t", "POST"],
    "reading, 32 bytes every 5 s": ["-X", "-n", "5", "-w", "64", "-y", "128", "-z", "32", "-k", "3"],
}


def slow_connections(seconds: float) -> list[dict[str, Any]]:
    """Return a row for each mode of slow connections."""
    missing = [program for program in ("slowhttptest", "prometheus") if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)} (Debian packages of these names)")
    return [_slow(name, flags, seconds) for name, flags in _MODES.items()]


def _slow(name: str, flags: list[str], seconds: float) -> dict[str, Any]:
    with subject(Setting(devices=_DEVICES)) as run:
        judge = Judge(run.truth)
        with Watch(run, judge) as watch, _scraping(run) as server:
            if watch.until(judge.whole, 30) is None:
                raise SystemExit(f"the daemon does not serve: {run.log()}")
            time.sleep(3)
            first, began = len(watch.scrapes), time.time()
            url = f"http://127.0.0.1:{run.port}/metrics"
            size = ["-c", str(_SLOW_CONNECTIONS), "-r", str(_OPENED_PER_SECOND)]
            attack = ["slowhttptest", "-u", url, *size, "-p", "3", *flags]
            # Repeated, because slowhttptest ends when all of its connections are closed.
            while (left := round(began + seconds - time.time())) > 0:
                subprocess.run([*attack, "-l", str(left)], check=False, capture_output=True, cwd=run.folder)
            lasted = time.time() - began
            max_open = max(scrape.value('gpugauge_open_fds{part="daemon"}') or 0 for scrape in watch.scrapes)
            window = f"[{round(lasted)}s]"
            sent, answered, longest = (
                server.value(f"{function}{window})", missing=float("nan"))
                for function in ("count_over_time(up", "sum_over_time(up", "max_over_time(scrape_duration_seconds")
            )
            scrapes = watch.scrapes[first:]
    times = [scrape.seconds for scrape in scrapes if not scrape.error]
    return {
        "slow in": name,
        "seconds": round(lasted),
        "Prometheus: scrapes": round(sent),
        "lost ": round(sent - answered) + max(0, round(lasted) - 1 - round(sent)),
        "longest ms": 1000 * longest,
        "direct: scrapes": len(scrapes),
        "lost": len(scrapes) - len(times),
        "p50 ms": 1000 * statistics.median(times),
        "worst ms": 1000 * max(times),
        "wrong values": sum(judge.wrong.values()),
        "open descriptors, most": int(max_open),
    }


@contextlib.contextmanager
def _scraping(run: Subject) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes the daemon each second."""
    targets = [{"targets": [f"127.0.0.1:{run.port}"]}]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "gpugauge", "static_configs": targets}],
    }
    with prometheus("prometheus", run.folder, config) as server:
        yield server


def many_scrapers(seconds: float) -> list[dict[str, Any]]:
    """Return one row: scrapers in parallel, each over its own connection, and the daemon's memory."""
    with subject(Setting(devices=_DEVICES)) as run:
        judge = Judge(run.truth)
        with Watch(run, judge) as watch:
            if watch.until(judge.whole, 30) is None:
                raise SystemExit(f"the daemon does not serve: {run.log()}")
        stop = threading.Event()
        times: list[float] = []
        errors: list[str] = []
        scrapers = [threading.Thread(target=_scrape, args=(run.port, stop, times, errors)) for _ in range(_SCRAPERS)]
        for scraper in scrapers:
            scraper.start()
        memory = []
        began = time.monotonic()
        while (at := time.monotonic() - began) < _WARM_UP_SECONDS + seconds:
            if at > _WARM_UP_SECONDS:
                memory.append((at, _resident(run.pid)))
            time.sleep(0.5)
        stop.set()
        for scraper in scrapers:
            scraper.join()
    slope = 60 * statistics.linear_regression(*zip(*memory, strict=True)).slope
    return [
        {
            "scrapers": _SCRAPERS,
            "seconds": round(seconds),
            "scrapes": len(times),
            "errors": len(errors),
            "p50 ms": 1000 * statistics.median(times),
            "p99 ms": 1000 * statistics.quantiles(times, n=100)[98],
            "worst ms": 1000 * max(times),
            "memory, MiB": memory[-1][1],
            "slope, MiB a minute": round(slope, 3),
        }
    ]


def failures(slow: list[dict[str, Any]], many: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each row that is not as required."""
    found = [
        f"slow {row['slow in']}: {row['lost ']} and {row['lost']} scrapes lost, {row['wrong values']} wrong"
        for row in slow
        if row["lost "] or row["lost"] or row["wrong values"]
    ]
    return found + [
        f"{row['scrapers']} scrapers: {row['errors']} errors, {row['slope, MiB a minute']:g} MiB a minute"
        for row in many
        if row["errors"] or row["slope, MiB a minute"] > _MAX_MIB_PER_MINUTE
    ]


def _scrape(port: int, stop: threading.Event, times: list[float], errors: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    while not stop.wait(_PAUSE_SECONDS):
        began = time.perf_counter()
        try:
            connection.request("GET", "/metrics", headers=HEADERS)
            response = connection.getresponse()
            whole = response.status == 200 and len(response.read()) > 1000
        except (OSError, http.client.HTTPException) as error:
            errors.append(f"{type(error).__name__}: {error}")
            connection.close()
            continue
        times.append(time.perf_counter() - began)
        if not whole:
            errors.append(f"status {response.status}")
    connection.close()


def _resident(pid: int) -> float:
    """Return the resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)
