"""Error of the mean utilization over a window, by our counters and by a gauge averaged over scrapes, on one GPU.

`python -m qa.bench.accuracy` prints the tables, --write writes them into qa/bench/results and docs/proof/accuracy.md.
The GPU, its sample ring, the daemon's readings and ticks (its own schedule, forecast, readings on demand and account)
and scrapes run in simulated time with a fixed seed, so the tables are reproducible.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from gpugauge.collectors.device.busy import EngineAccount
from gpugauge.driver.api import Group
from gpugauge.simulator.device.activity import Load, load
from qa.bench import figures
from qa.bench.report import report
from qa.bench.timeline import Costs, Timeline

COMMAND = "python -m qa.bench.accuracy"

# Periods in seconds, and the share of it in which kernels run. One period is a usual scrape interval.
LOADS = ((0.37, 0.5), (1.3, 0.3), (4.7, 0.5), (15.0, 0.2), (22.0, 0.8), (70.0, 0.5), (310.0, 0.5))
SCRAPES = (5, 15, 30, 60)
SECONDS = 2 * 3600
SAMPLE = 1 / 6  # nvml.h: 1/6 s to 1 s by product
JITTER = 0.05  # of a sample's width
ENTRIES = 72
MAX_DELAY = 0.01  # seconds by which a scrape is late
SETTLING = 4  # scrapes, after which the daemon knows the scraper's interval
COSTS = Costs(reading=0.01, ticking=0.01, late=0.003)  # twice what a simulated node of 8 GPUs takes
SLOW = Costs(reading=0.05, ticking=0.03, late=0.01)  # too slow for readings on demand
WINDOW = 60.0  # seconds, for irregular scrapers; they are at every second

Gaps: TypeAlias = Callable[[Random], Iterator[float]]


@dataclass(frozen=True)
class Course:
    """The values of the scrapes at `times`: our two counters and the driver's percentage; seconds waited."""

    times: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)
    gauge: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)  # of the newest sample in the counters
    waits: list[float] = field(default_factory=list)
    readings: int = 0


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
            busy = self._shape(self._due) - self._shape(self._sampled)
            self.percent = round(100 * busy / (self._due - self._sampled))
            self._ring.append([round((1000 + self._due) * 1e6), self.percent])
            width = SAMPLE * self._random.uniform(1 - JITTER, 1 + JITTER)
            self._sampled, self._due = self._due, self._due + width

    def drain(self) -> list[list[int]]:
        """Return the samples since the last call that the ring still has."""
        samples, self._ring = self._ring[-ENTRIES:], []
        return samples


@dataclass(frozen=True)
class _Reading:
    received: float
    samples: list[list[int]]
    percent: int


class Daemon:
    """The daemon with one GPU; `busy`, `observed` and `newest` are in the body of a scrape now."""

    def __init__(self, device: Device, random: Random, costs: Costs) -> None:
        self._device, self._account = device, EngineAccount()
        self.timeline = Timeline(self._read, self._tick, self._show, random, costs)
        self._newest = 0.0
        self.busy, self.observed, self.newest = 0.0, 0.0, 0.0

    def _read(self, groups: list[Group]) -> _Reading | None:
        self._device.advance(self.timeline.now)
        if "samples" not in groups:
            return None
        return _Reading(self.timeline.now, self._device.drain(), self._device.percent)

    def _tick(self, readings: list[_Reading | None]) -> None:
        for reading in readings:
            if reading:
                self._account.drain(reading.samples, reading.received, reading.percent)
                self._newest = reading.samples[-1][0] / 1e6 - 1000 if reading.samples else self._newest

    def _show(self) -> None:
        self.busy, self.observed, self.newest = self._account.busy, self._account.observed, self._newest


def run(shape: Load, scrapers: list[Gaps], seconds: float, seed: int, costs: Costs = COSTS) -> list[Course]:
    """Return the scrapes of each scraper of a daemon, with a GPU under a load."""
    random = Random(seed)
    device = Device(shape, random)
    daemon, courses = Daemon(device, random, costs), [Course() for _ in scrapers]
    timeline = daemon.timeline
    for name, (gaps, course) in enumerate(zip(scrapers, courses, strict=True)):
        _let_come(timeline, str(name), gaps(random), course, daemon, device)
    timeline.run(seconds)
    return [Course(**{**vars(course), "readings": timeline.readings}) for course in courses]


def _let_come(
    timeline: Timeline[Any], scraper: str, gaps: Iterator[float], course: Course, daemon: Daemon, device: Device
) -> None:
    """Let a scraper come again and again."""

    def come(at: float) -> None:
        def answer() -> None:
            device.advance(at)
            course.times.append(at)
            course.busy.append(daemon.busy)
            course.observed.append(daemon.observed)
            course.gauge.append(device.percent / 100)
            course.ages.append(at - daemon.newest)
            course.waits.append(timeline.now - at)
            come(max(timeline.now, at + next(gaps)))

        timeline.scrape(at, scraper, answer)

    come(next(gaps))


def every(seconds: float, jitter: float = 0.0) -> Gaps:
    """Return gaps between scrapes that are late by at most MAX_DELAY, or differ by a share of the gap."""

    def gaps(random: Random) -> Iterator[float]:
        yield random.uniform(0, seconds)
        late = 0.0
        while True:
            before, late = late, random.uniform(0, MAX_DELAY)
            yield seconds * random.uniform(1 - jitter, 1 + jitter) + late - before

    return gaps


def between(shortest: float, longest: float) -> Gaps:
    """Return gaps of any length between two."""

    def gaps(random: Random) -> Iterator[float]:
        while True:
            yield random.uniform(shortest, longest)

    return gaps


def bursts(random: Random) -> Iterator[float]:
    """Yield the gaps of two to five scrapes within a second or two, every 10 to 20 s."""
    while True:
        yield random.uniform(10, 20)
        for _ in range(random.randint(1, 4)):
            yield random.uniform(0.02, 0.5)


def with_pauses(random: Random) -> Iterator[float]:
    """Yield gaps of 15 s, and from time to time one of minutes."""
    while True:
        yield random.uniform(120, 600) if random.random() < 0.05 else 15 + random.uniform(0, MAX_DELAY)


# Titles, scrapers of which the first is measured, and costs: with a period and up to 20 % of jitter, without a period,
# with a short period, and with a slow driver.
_PERIODIC: tuple[tuple[str, list[Gaps], Costs], ...] = (
    ("15 s", [every(15)], COSTS),
    ("5 s ± 20 %", [every(5, 0.2)], COSTS),
    ("15 s ± 20 %", [every(15, 0.2)], COSTS),
    ("15 s ± 1 s", [every(15, 1 / 15)], COSTS),
    ("20 s ± 20 %", [every(20, 0.2)], COSTS),
    ("two, each 15 s ± 20 %", [every(15, 0.2), every(15, 0.2)], COSTS),
    ("15 s, beside one of 5 s ± 20 %", [every(15), every(5, 0.2)], COSTS),
)
_OTHER: tuple[tuple[str, list[Gaps], Costs], ...] = (
    ("15 s with pauses of minutes", [with_pauses], COSTS),
    ("1 to 5 s", [between(1, 5)], COSTS),
    ("5 to 25 s", [between(5, 25)], COSTS),
    ("bursts", [bursts], COSTS),
)
_FREQUENT: tuple[tuple[str, list[Gaps], Costs], ...] = (("1 s", [every(1)], COSTS),)
_SLOW: tuple[tuple[str, list[Gaps], Costs], ...] = (
    ("15 s ± 20 %, a driver too slow to wait for", [every(15, 0.2)], SLOW),
    ("5 to 25 s, a driver too slow to wait for", [between(5, 25)], SLOW),
)
SCRAPERS = (*_PERIODIC, *_OTHER, *_FREQUENT, *_SLOW)
KINDS = {
    "periodic": {title for title, *_ in _PERIODIC},
    "other": {title for title, *_ in _OTHER},
    "frequent": {title for title, *_ in _FREQUENT},
}


def irregular_rows() -> list[dict[str, Any]]:
    """Return a row for each kind of scraper, over all loads."""
    return [_scraper_row(number, *scraper) for number, scraper in enumerate(SCRAPERS)]


def _scraper_row(number: int, title: str, scrapers: list[Gaps], costs: Costs) -> dict[str, Any]:
    found: list[float] = []
    ages: list[float] = []
    waits: list[float] = []
    readings = 0
    for place, (period, duty) in enumerate(LOADS):
        shape = load({"shape": "square", "high": 1.0, "low": 0.0, "period": period, "duty": duty})
        course = run(shape, scrapers, SECONDS, 1000 + 100 * number + place, costs)[0]
        found += window_errors(shape, course)
        ages += course.ages[SETTLING:]
        waits += course.waits[SETTLING:]
        readings += course.readings
    return {
        "scraper": title,
        "newest sample, s, at most": max(ages),
        "60 s, typical": rms(found),
        "60 s, worst": max(map(abs, found)),
        "scrapes that wait %": 100 * sum(wait > 0 for wait in waits) / len(waits),
        "readings a minute": readings / len(LOADS) / SECONDS * 60,
    }


def window_errors(shape: Load, course: Course) -> list[float]:
    """Return the errors of rate(busy) / rate(observed) over any 60 s, in percentage points.

    The extrapolation of rate() is the same in both and cancels out. What remains is the change from the first to the
    last scrape in the window.
    """
    found = []
    times = course.times
    for end in range(math.ceil(times[SETTLING] + WINDOW), int(times[-1])):
        first, last = bisect_right(times, end - WINDOW), bisect_right(times, end) - 1
        if first < last:
            true = (shape(times[last]) - shape(times[first])) / (times[last] - times[first])
            observed = course.observed[last] - course.observed[first]
            found.append(100 * ((course.busy[last] - course.busy[first]) / observed - true) if observed else 100.0)
    return found


def errors(shape: Load, course: Course, scrape: int) -> tuple[list[float], list[float]]:
    """Return the errors of our mean and of the gauge's mean, in percentage points.

    The windows slide by one scrape, reach from one scrape to another, and last at least a minute and four scrapes.
    """
    count = max(4, 60 // scrape)
    ours, gauges = [], []
    for end in range(count + SETTLING, len(course.times)):
        start = end - count
        true = (shape(course.times[end]) - shape(course.times[start])) / (course.times[end] - course.times[start])
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
            ours, gauges = errors(shape, run(shape, [every(scrape)], SECONDS, 100 * number + scrape)[0], scrape)
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


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return rows with two digits behind the point."""
    return [
        {name: f"{cell:.2f}" if isinstance(cell, float) else str(cell) for name, cell in row.items()} for row in rows
    ]


def main() -> None:
    regular, any_scraper = rows(), irregular_rows()
    title = "Error of the mean utilization, in percentage points"
    worst = max(row["gpugauge, worst"] for row in regular)
    report(title, _shown(regular), COMMAND, name="regular", figures={"worst": f"{worst:.2f}"})
    most = {kind: max(row["60 s, worst"] for row in any_scraper if row["scraper"] in KINDS[kind]) for kind in KINDS}
    report(
        "Error of the mean utilization over any 60 s, in percentage points",
        _shown(any_scraper),
        COMMAND,
        name="scrapers",
        figures={kind: f"{value:.2f}" for kind, value in most.items()},
    )


if __name__ == "__main__":
    figures.run("accuracy", main)
