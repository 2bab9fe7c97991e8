"""Error of the mean utilization over a window, by our counters and by a gauge averaged over scrapes, on one GPU.

`python -m bench.accuracy` prints the table, --write writes it into bench/results and docs/accuracy.md. The GPU, its
sample ring, the daemon's readings and ticks (its own schedule, forecast and account) and the scrapes run in simulated
time with a fixed seed, so the table is reproducible.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from random import Random
from typing import Any

from bench import figures
from bench.report import report
from gpugauge.collectors.device.busy import EngineAccount
from gpugauge.daemon.assembly import READING_INTERVALS
from gpugauge.daemon.sampler import LEAD_SECONDS as TICK_LEAD
from gpugauge.driver.reader import LEAD_SECONDS as READ_LEAD
from gpugauge.driver.schedule import ReadingIntervals, Schedule
from gpugauge.forecast import ScrapeForecast
from gpugauge.simulator.device.load import Load, load

# Periods in seconds, and the share of it in which kernels run. One period is a usual scrape interval.
LOADS = ((0.37, 0.5), (1.3, 0.3), (4.7, 0.5), (15.0, 0.2), (22.0, 0.8), (70.0, 0.5), (310.0, 0.5))
SCRAPES = (5, 15, 30, 60)
SECONDS = 2 * 3600
SAMPLE = 1 / 6  # nvml.h: 1/6 s to 1 s by product
JITTER = 0.05  # of a sample's width
ENTRIES = 72
INTERVAL, IDLE = 1.0, 5.0  # the defaults of sampling.interval_seconds and idle_interval_seconds
MAX_DELAY = 0.01  # seconds by which a thread or a scrape is late
READING, TICKING = 0.05, 0.03  # seconds of a reading and of a tick: generous for a node of 8 GPUs
SETTLING = 4  # scrapes, after which the daemon knows the scraper's interval


@dataclass(frozen=True)
class Course:
    """The values of the scrapes at `times`: our two counters and the driver's percentage."""

    times: list[float]
    busy: list[float]
    observed: list[float]
    gauge: list[float]


class Device:
    """A ring of samples under a load, and the percentage of the last sample."""

    def __init__(self, shape: Load, random: Random) -> None:
        self._shape, self._random = shape, random
        self._sampled, self._due = 0.0, SAMPLE
        self._ring: list[list[int]] = []
        self.percent = 0

    def advance(self, now: float) -> None:
        """Add the samples that end by `now`."""
        while self._due <= now:
            busy = self._shape.integral(self._due) - self._shape.integral(self._sampled)
            self.percent = round(100 * busy / (self._due - self._sampled))
            self._ring.append([round((1000 + self._due) * 1e6), self.percent])
            width = SAMPLE * self._random.uniform(1 - JITTER, 1 + JITTER)
            self._sampled, self._due = self._due, self._due + width

    def drain(self) -> list[list[int]]:
        """Return the samples since the last call that the ring still has."""
        samples, self._ring = self._ring[-ENTRIES:], []
        return samples


class Daemon:
    """The daemon's two loops in simulated time: readings of the GPU, and ticks that publish them."""

    def __init__(self, device: Device, random: Random) -> None:
        self._device, self._random = device, random
        self._account, self._schedule, self.forecast = EngineAccount(), Schedule(), ScrapeForecast()
        self._reads, self._ticks = 0.0, random.uniform(0, INTERVAL)  # when the next of each is due
        self._answers: list[tuple[float, list[list[int]], int]] = []
        self._published = [(0.0, 0.0, 0.0)]

    def run(self, until: float) -> None:
        """Run the readings and ticks that are due before `until`."""
        while min(self._reads, self._ticks) < until:
            late = self._random.uniform(0, MAX_DELAY)
            if self._reads < self._ticks:
                self._read(self._reads + late)
                self._reads = self.forecast.next_tick(self._reads, INTERVAL, IDLE, READ_LEAD + READING)
            else:
                self._tick(self._ticks + late)
                self._ticks = self.forecast.next_tick(self._ticks, INTERVAL, IDLE, TICK_LEAD + TICKING)

    def shown(self, now: float) -> tuple[float, float]:
        """Return busy and observed seconds in a scrape at `now`."""
        return next((busy, observed) for since, busy, observed in reversed(self._published) if since <= now)

    def _read(self, now: float) -> None:
        self._device.advance(now)
        near = self.forecast.is_near(now, INTERVAL, READ_LEAD + READING)
        if "samples" in self._schedule.take(ReadingIntervals(READING_INTERVALS), now, scrape=near):
            self._answers.append((now + READING, self._device.drain(), self._device.percent))

    def _tick(self, now: float) -> None:
        while self._answers and self._answers[0][0] <= now:
            received, samples, percent = self._answers.pop(0)
            self._account.drain(samples, received, percent)
        self._published = [self._published[-1], (now + TICKING, self._account.busy, self._account.observed)]


def run(shape: Load, scrape: float, seconds: float, seed: int) -> Course:
    """Return the scrapes of a daemon, at an interval, with a GPU under a load."""
    random = Random(seed)
    device = Device(shape, random)
    daemon, course = Daemon(device, random), Course([], [], [], [])
    due = random.uniform(0, scrape)
    while due < seconds:
        now = due + random.uniform(0, MAX_DELAY)
        daemon.run(now)
        daemon.forecast.record_scrape("prometheus", now)
        device.advance(now)
        for values, value in zip(
            (course.times, course.busy, course.observed, course.gauge),
            (now, *daemon.shown(now), device.percent / 100),
            strict=True,
        ):
            values.append(value)
        due += scrape
    return course


def errors(shape: Load, course: Course, scrape: int) -> tuple[list[float], list[float]]:
    """Return the errors of our mean and of the gauge's mean, in percentage points.

    The windows slide by one scrape, reach from one scrape to another, and last at least a minute and four scrapes.
    """
    count = max(4, 60 // scrape)
    ours, gauges = [], []
    for end in range(count + SETTLING, len(course.times)):
        start = end - count
        true = (shape.integral(course.times[end]) - shape.integral(course.times[start])) / (
            course.times[end] - course.times[start]
        )
        mean = (course.busy[end] - course.busy[start]) / (course.observed[end] - course.observed[start])
        ours.append(100 * (mean - true))
        gauges.append(100 * (statistics.fmean(course.gauge[start + 1 : end + 1]) - true))
    return ours, gauges


def rows() -> list[dict[str, Any]]:
    """Return a row for each load and scrape interval."""
    result = []
    for number, (period, duty) in enumerate(LOADS):
        shape = load({"shape": "square", "high": 1.0, "low": 0.0, "period": period, "duty": duty})
        for scrape in SCRAPES:
            ours, gauges = errors(shape, run(shape, scrape, SECONDS, seed=100 * number + scrape), scrape)
            result.append(
                {
                    "on/off period s": f"{period:g}",
                    "busy %": f"{100 * duty:g}",
                    "scrape s": scrape,
                    "window s": scrape * max(4, 60 // scrape),
                    "gpugauge, typical": rms(ours),
                    "gpugauge, worst": max(map(abs, ours)),
                    "gauge, typical": rms(gauges),
                    "gauge, worst": max(map(abs, gauges)),
                }
            )
    return result


def rms(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))


def main() -> None:
    found = rows()
    shown = [
        {name: f"{cell:.2f}" if isinstance(cell, float) else str(cell) for name, cell in row.items()} for row in found
    ]
    worst = max(row["gpugauge, worst"] for row in found)
    title = "Error of the mean utilization, in percentage points"
    report(title, shown, "python -m bench.accuracy", figures={"worst": f"{worst:.2f}"})


if __name__ == "__main__":
    figures.run("accuracy", main)
