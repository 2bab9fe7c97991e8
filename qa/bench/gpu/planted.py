"""Planted faults on a real GPU: `python -m qa.bench.gpu.planted [NAME …] --out FOLDER`.

It runs the daemon, and under the hook each training of qa.bench.gpu.trainings. The cause that the daemon names is
compared with the planted one, its expected gain with the measured one, and its busy seconds with those that CUPTI
records. All scrapes are kept in scrapes.xz.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from qa.bench.gpu.tables import row
from qa.bench.report import report

PORT = 10478
BAD_SECONDS = 26.0
GOOD_SECONDS = 7.0
STALLED_SECONDS = 5  # without a step; a verdict follows at most 5 s later
_HANG_SECONDS = 20.0  # from the start of the training that hangs, until it is killed
SPINNING = "import torch\na = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\nwhile True:\n    a @ a\n"
SPINNING += "    torch.cuda.synchronize()\n"
# The state and the cause that must be reported for each training.
PLANTED: dict[str, tuple[str, str | None]] = {
    "healthy": ("training", None),
    "data_loading": ("training", "data_loading"),
    "host_bound": ("training", "host_bound"),
    "transfer": ("training", "transfer"),
    "underfilled": ("training", "underfilled"),
    "precision_unused": ("training", "precision_unused"),
    "memory_pressure": ("training", "memory_pressure"),
    "cpu_limited": ("training", "cpu_limited"),
    "contention": ("training", "contention"),
    "stalled": ("stalled", None),
    "held": ("held_idle", "unused_gpus"),
    "model_on_cpu": ("training_on_cpu", "model_on_cpu"),
    "no_visible_device": ("training_on_cpu", "no_visible_device"),
}
BESIDE = ("model_on_cpu", "no_visible_device")  # they leave the GPU idle, and run beside the others
OUTSIDE = ("contention", "cpu_limited")  # what is planted outside of the training


class Scrapes:
    """Scrapes of the daemon, one each second, with the monotonic time between request and reply."""

    def __init__(self) -> None:
        self.pages: list[tuple[float, str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scrapes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            with contextlib.suppress(OSError):
                began = time.monotonic()
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as reply:
                    page = reply.read().decode()
                self.pages.append(((began + time.monotonic()) / 2, page))

    def before(self, instant: float) -> str:
        """Return the newest page that was read before an instant."""
        return max((at, page) for at, page in self.pages if at <= instant)[1]

    def load(self, begin: float, end: float) -> float | None:
        """Return the mean load between two instants, as a share of the observed time; None if it is not known."""
        pages = [page for at, page in self.pages if begin <= at <= end]
        rises = []
        for counter in ("gpu_busy_seconds_total", "gpu_observed_seconds_total"):
            if len(pages) < 2:
                return None
            first, last = (
                next((v for _, v in samples(page, counter, engine="gpu")), None) for page in (pages[0], pages[-1])
            )
            if first is None or last is None:
                return None
            rises.append(last - first)
        return rises[0] / rises[1] if rises[1] else None


@lru_cache(maxsize=4)
def parsed(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the labels and the values of all samples of a page by their name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def samples(page: str, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the value of each sample of a metric that has these labels."""
    return ((found, value) for found, value in parsed(page).get(name, ()) if labels.items() <= found.items())


def process_of(page: str, pid: int) -> str | None:
    """Return the label `process` of a pid."""
    match = re.search(rf'pid="{pid}",process="(\w+)"', page)
    return match[1] if match else None


def shown(page: str, process: str | None) -> dict[str, Any]:
    """Return what a page states of a process."""
    if process is None:
        return {"state": None}
    of = {"process": process}
    values: dict[str, Any] = {
        "state": next((s["state"] for s, value in samples(page, "training_state", **of) if value), None),
        "cause": next((s["cause"] for s, value in samples(page, "training_limited_by", **of) if value), None),
        "lost": {s["cause"]: value for s, value in samples(page, "training_limited_by_ratio", **of)},
        "gain": {s["cause"]: value for s, value in samples(page, "training_expected_speedup_ratio", **of)},
        "lower": {s["cause"]: value for s, value in samples(page, "training_expected_speedup_lower_ratio", **of)},
        "upper": {s["cause"]: value for s, value in samples(page, "training_expected_speedup_upper_ratio", **of)},
        "undecidable": [s["undecidable"] for s, _ in samples(page, "training_verdict_info", **of)],
        "mfu": [value for _, value in samples(page, "training_mfu_ratio", **of)],
        "confidence": [s["confidence"] for s, _ in samples(page, "training_verdict_info", **of)],
    }
    for name in ("gpu_sm_active_ratio", "gpu_sm_occupancy_ratio", "gpu_tensor_active_ratio", "gpu_power_watts"):
        values[name] = [value for _, value in samples(page, name)]
    return values


class Training:
    """A running training under the hook."""

    def __init__(self, name: str, out: Path, bad: float, good: float, **environ: str) -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        module = "model_on_cpu" if name == "no_visible_device" else name
        command = [sys.executable, "-m", "gpugauge", "run", "--", sys.executable, "-m", "qa.bench.gpu.trainings"]
        self.errors = (out / f"{name}.err").open("w")
        self.process = subprocess.Popen(
            [*command, module, str(bad), str(good)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | environ,
        )
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.lines.append(json.loads(line) | {"printed": time.monotonic()})

    def wait(self, seconds: float) -> None:
        """Wait for the end, at most some seconds; then kill it."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.thread.join()


def cgroup(pid: int, share: float | None) -> bool:
    """Give a process a share of a core by a cgroup (all of one with None); return whether that is possible."""
    folder = Path("/sys/fs/cgroup/gpugauge-bench")
    try:
        root = Path("/sys/fs/cgroup/cgroup.subtree_control")
        with contextlib.suppress(OSError):
            root.write_text("+cpu")
        folder.mkdir(exist_ok=True)
        (folder / "cpu.max").write_text(f"{int(1e5 * share)} 100000" if share else "max 100000")
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        print("no cgroup:", error, flush=True)
        return False
    return True


def run_one(name: str, out: Path, scrapes: Scrapes, bad: float, good: float) -> dict[str, Any]:
    """Run a training; return its lines and what the daemon stated."""
    cured = out / "cured"
    cured.unlink(missing_ok=True)
    neighbour = None
    training = Training(
        name, out, bad, 0.0 if name in ("stalled", "held") else good, BENCH_CURED=str(cured) if name in OUTSIDE else ""
    )
    if name == "contention":
        neighbour = subprocess.Popen([sys.executable, "-c", SPINNING])
    limited = False
    end = time.monotonic() + bad + good + 45.0
    while training.process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        if name == "cpu_limited" and training.lines and not limited:
            limited = cgroup(training.process.pid, 0.4)
        if cured.exists():
            if neighbour:
                neighbour.kill()
            if name == "cpu_limited":
                cgroup(training.process.pid, None)
            cured.unlink()
        if name == "stalled" and training.lines and time.monotonic() > training.lines[0]["began"] + _HANG_SECONDS:
            break
    training.wait(0.0 if name == "stalled" else 5.0)
    if neighbour:
        neighbour.kill()
    return result(training, scrapes)


def result(training: Training, scrapes: Scrapes) -> dict[str, Any]:
    """Return what a training measured and what the daemon stated before its first part ended."""
    parts = {line["part"]: line for line in training.lines}
    bad, good = parts.get("bad"), parts.get("good")
    instant = bad["end"] if bad else time.monotonic() - 1.0
    page = scrapes.before(instant)
    pid = training.process.pid
    processes = (process_of(text, pid) for _, text in reversed(scrapes.pages))
    process = next(filter(None, processes), None)
    found: dict[str, Any] = {"name": training.name, "planted": PLANTED[training.name], "pid": pid, "parts": parts}
    found["shown"] = shown(page, process)
    if good:
        found["shown good"] = shown(scrapes.before(good["end"]), process)
    if bad and good:
        found["speedup"] = good["rate"] / bad["rate"]
    profile = parts.get("profiled")
    if bad and profile and profile["steps"]:
        # Shares of the time: CUPTI slows the host down, so its time in each step is taken, at the rate without it.
        found["busy"] = {
            "counter": scrapes.load(bad["begin"], bad["end"]),
            "kernels": profile["kernels"] / profile["steps"] * bad["rate"],
            "with copies": profile["with copies"] / profile["steps"] * bad["rate"],
            "kernels a step": profile["events"] / profile["steps"],
        }
    state = found["shown"].get("state"), found["shown"].get("cause")
    verdict = "right" if state == PLANTED[training.name] else "WRONG"
    print(f"{training.name:18} {verdict} {state} {json.dumps(found['shown'])}", flush=True)
    print(" " * 18, "speedup", found.get("speedup"), json.dumps(found.get("busy")), flush=True)
    print(" " * 18, json.dumps(parts), flush=True)
    return found


def main() -> None:
    """Run the daemon and the trainings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PLANTED])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bad", type=float, default=BAD_SECONDS)
    parser.add_argument("--good", type=float, default=GOOD_SECONDS)
    options = parser.parse_args()
    chosen = options.names or list(PLANTED)
    options.out.mkdir(parents=True, exist_ok=True)
    log = (options.out / "daemon.log").open("w")
    flags = [f"--verdict.stalled-seconds={STALLED_SECONDS}", f"--driver.state-file={options.out}/gpus.json"]
    daemon = subprocess.Popen(
        [sys.executable, "-m", "gpugauge", "serve", f"--web.listen-address=127.0.0.1:{PORT}", *flags],
        stdout=log,
        stderr=log,
    )
    results = []
    try:
        with Scrapes() as scrapes:
            environ = {"no_visible_device": {"CUDA_VISIBLE_DEVICES": ""}}
            beside = [
                Training(name, options.out, options.bad, 0.0, **environ.get(name, {}))
                for name in BESIDE
                if name in chosen
            ]
            alone = [name for name in chosen if name not in BESIDE]
            results += [run_one(name, options.out, scrapes, options.bad, options.good) for name in alone]
            for training in beside:
                training.wait(options.bad + 40.0)
            results += [result(training, scrapes) for training in beside]
            status = [sys.executable, "-m", "gpugauge", "status"]
            subprocess.run(status, check=False)
    finally:
        daemon.terminate()
        daemon.wait(20)
    (options.out / "planted.json").write_text(json.dumps(results))
    with lzma.open(options.out / "scrapes.xz", "wt", preset=1) as file:
        for at, page in scrapes.pages:
            file.write(f"# scraped at {at}\n{page}")
    right = sum((r["shown"].get("state"), r["shown"].get("cause")) == tuple(r["planted"]) for r in results)
    gpu = next((labels["name"] for labels, _ in samples(scrapes.pages[-1][1], "gpu_info")), "none")
    report(f"Planted faults: {right} of {len(results)} as planted", [row(found, gpu) for found in results])


if __name__ == "__main__":
    main()
