"""Crowds at the port: thousands of slow connections, and many scrapers at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import shutil
import statistics
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import HEADERS
from bench.torture.fault import Watch
from bench.torture.subject import Setting, Subject, free_port, subject
from bench.torture.truth import Judge

_DEVICES = 8
_SLOW_CONNECTIONS, _RATE = 2000, 500  # of slowhttptest, and how many it opens a second
_SCRAPERS, _PAUSE = 50, 0.2
_WARM = 10.0  # seconds before memory is looked at
_FLAT = 2.0  # MiB a minute: what the interpreter's own allocator may do in a minute without any leak

# slowhttptest(1): what is slow, and how it is asked for.
_MODES = {
    "headers, a line every 5 s": ["-H", "-i", "5", "-x", "24"],
    "body, some bytes every 5 s": ["-B", "-i", "5", "-x", "10", "-s", "8192", "-t", "POST"],
    "reading, 32 bytes every 5 s": ["-X", "-n", "5", "-w", "64", "-y", "128", "-z", "32", "-k", "3"],
}


def slow_connections(seconds: float) -> list[dict[str, Any]]:
    """Return a row for each way to be slow."""
    missing = [program for program in ("slowhttptest", "prometheus") if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)} (Debian packages of these names)")
    return [_slow(name, flags, seconds) for name, flags in _MODES.items()]


def _slow(name: str, flags: list[str], seconds: float) -> dict[str, Any]:
    with subject(Setting(devices=_DEVICES)) as run:
        judge = Judge(run.truth)
        with Watch(run, judge) as watch, _prometheus(run) as server:
            if watch.until(judge.whole, 30) is None:
                raise SystemExit(f"the daemon does not serve: {run.log()}")
            time.sleep(3)
            first, began = len(watch.pages), time.time()
            url = f"http://127.0.0.1:{run.port}/metrics"
            attack = ["slowhttptest", "-u", url, "-c", str(_SLOW_CONNECTIONS), "-r", str(_RATE), "-p", "3", *flags]
            # It ends when all its connections were closed, and then they come again.
            while (left := round(began + seconds - time.time())) > 0:
                subprocess.run([*attack, "-l", str(left)], check=False, capture_output=True, cwd=run.folder)
            lasted = time.time() - began
            open_most = max(page.value('gpugauge_open_fds{part="daemon"}') or 0 for page in watch.pages)
            window = f"[{round(lasted)}s]"
            asked, came, longest = (
                _query(server, f"{what}{window})")
                for what in ("count_over_time(up", "sum_over_time(up", "max_over_time(scrape_duration_seconds")
            )
            pages = watch.pages[first:]
    times = [page.seconds for page in pages if not page.error]
    return {
        "slow in": name,
        "seconds": round(lasted),
        "Prometheus: scrapes": round(asked),
        "lost ": round(asked - came) + max(0, round(lasted) - 1 - round(asked)),
        "longest ms": 1000 * longest,
        "direct: scrapes": len(pages),
        "lost": len(pages) - len(times),
        "p50 ms": 1000 * statistics.median(times),
        "worst ms": 1000 * max(times),
        "wrong values": sum(judge.wrong.values()),
        "open descriptors, most": int(open_most),
    }


@contextlib.contextmanager
def _prometheus(run: Subject) -> Iterator[str]:
    """Run a Prometheus that scrapes each second, and yield its address."""
    file = run.folder / "prometheus.yml"
    file.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: gpugauge, static_configs: [{{targets: ['127.0.0.1:{run.port}']}}]}}]\n"
    )
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={run.folder / 'tsdb'}"]
    with (run.folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def _query(server: str, expression: str) -> float:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{server}/api/v1/query?{query}", timeout=10) as answer:
        result = json.loads(answer.read())["data"]["result"]
    return float(result[0]["value"][1]) if result else float("nan")


def many_scrapers(seconds: float) -> list[dict[str, Any]]:
    """Return one row: so many at once, each over its own connection, and the daemon's memory meanwhile."""
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
        while (at := time.monotonic() - began) < seconds:
            if at > min(_WARM, seconds / 4):
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
    """Return what is not as promised."""
    found = [
        f"slow {row['slow in']}: {row['lost ']} and {row['lost']} scrapes lost, {row['wrong values']} wrong"
        for row in slow
        if row["lost "] or row["lost"] or row["wrong values"]
    ]
    return found + [
        f"{row['scrapers']} scrapers: {row['errors']} errors, {row['slope, MiB a minute']:g} MiB a minute"
        for row in many
        if row["errors"] or row["slope, MiB a minute"] > _FLAT
    ]


def _scrape(port: int, stop: threading.Event, times: list[float], errors: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    while not stop.wait(_PAUSE):
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
    """MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)
