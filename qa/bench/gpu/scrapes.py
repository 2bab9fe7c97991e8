"""Scrapes of a daemon on a machine with a GPU, and what they state of a process."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


class Scrapes:
    """Scrapes of the daemon, one each second, with the monotonic time of the reply; the last minutes are kept."""

    def __init__(self, url: str) -> None:
        self.pages: list[tuple[float, str]] = []
        self._url = url
        self._stop = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """End the scrapes."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            with contextlib.suppress(OSError, http.client.HTTPException):
                with urllib.request.urlopen(self._url, timeout=10) as reply:
                    page = reply.read().decode()
                self.pages = [*self.pages[-180:], (time.monotonic(), page)]

    @property
    def page(self) -> str:
        """The newest page."""
        return self.pages[-1][1] if self.pages else ""


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
    """Return the label `process` of a pid that reports through the hook."""
    return next((labels["process"] for labels, _ in samples(page, "torch_process_info", pid=str(pid))), None)


def verdicts(page: str, process: str | None) -> float | None:
    """Return the seconds of a process that are counted by its verdicts, None before the first one."""
    spent = [value for _, value in samples(page, "training_seconds_total", process=process or "")]
    return sum(spent) if spent else None


def shown(page: str, process: str | None) -> dict[str, Any]:
    """Return what a page states of a process."""
    of = {"process": process or ""}
    values: dict[str, Any] = {
        "state": next((s["state"] for s, value in samples(page, "training_state", **of) if value), None),
        "cause": next((s["cause"] for s, value in samples(page, "training_limited_by", **of) if value), None),
        "lost": {s["cause"]: value for s, value in samples(page, "training_limited_by_ratio", **of)},
        "gain": {s["cause"]: value for s, value in samples(page, "training_expected_speedup_ratio", **of)},
        "lower": {s["cause"]: value for s, value in samples(page, "training_expected_speedup_lower_ratio", **of)},
        "upper": {s["cause"]: value for s, value in samples(page, "training_expected_speedup_upper_ratio", **of)},
        "undecidable": [s["undecidable"] for s, _ in samples(page, "training_verdict_info", **of)],
        "mfu": [value for _, value in samples(page, "training_mfu_ratio", **of)],
    }
    for name in ("gpu_sm_active_ratio", "gpu_sm_occupancy_ratio", "gpu_tensor_active_ratio", "gpu_power_watts"):
        values[name] = [value for _, value in samples(page, name)]
    return values
