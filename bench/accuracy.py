"""Error of a mean utilization over a window: our counters, and a gauge averaged over scrapes, of one simulated card.

`python -m bench.accuracy` prints the table, with --write into docs/accuracy.md. Nothing waits: the card, its sample
ring, the worker's drains and the scrapes run in simulated time, and the seed is fixed: the table can be made again.
"""

from __future__ import annotations

import argparse
import math
import statistics
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gpugauge.collectors.busy import EngineAccount
from gpugauge.driver.simulated.load import Load, load

DOCUMENT = Path(__file__).parent.parent / "docs" / "accuracy.md"
BEGIN, END = "<!-- table: python -m bench.accuracy --write -->", "<!-- end of table -->"

# Seconds of a period, and the part of it in which kernels run. One of them beats in time with usual scrape intervals.
LOADS = ((0.37, 0.5), (1.3, 0.3), (4.7, 0.5), (15.0, 0.2), (22.0, 0.8), (70.0, 0.5), (310.0, 0.5))
SCRAPES = (5, 15, 30, 60)
SECONDS = 2 * 3600
SAMPLE = 1 / 6  # nvml.h: 1/6 s to 1 s by product
JITTER = 0.05  # of a sample's width
TICK_JITTER = 0.03  # seconds by which a drain comes early or late
ENTRIES = 72


@dataclass(frozen=True)
class Course:
    """What the exporters showed over time: at `times`, our two counters and the driver's percentage."""

    times: list[float]
    busy: list[float]
    observed: list[float]
    gauge: list[float]

    def at(self, t: float) -> int:
        """The index of what a scrape at `t` gets."""
        return bisect_right(self.times, t) - 1


def run(shape: Load, seconds: float, seed: int) -> Course:
    """Let a card run under a load, and drain its ring once a second."""
    random, account = Random(seed), EngineAccount()
    course = Course([], [], [], [])
    ring: list[list[int]] = []
    sampled, due, percent = 0.0, SAMPLE, 0
    for second in range(1, int(seconds)):
        now = second + random.uniform(-TICK_JITTER, TICK_JITTER)
        while due <= now:
            percent = round(100 * (shape.integral(due) - shape.integral(sampled)) / (due - sampled))
            ring.append([round((1000 + due) * 1e6), percent])
            sampled, due = due, due + SAMPLE * random.uniform(1 - JITTER, 1 + JITTER)
        account.drain(ring[-ENTRIES:], now, percent)
        ring.clear()
        for values, value in zip(
            (course.times, course.busy, course.observed, course.gauge),
            (now, account.busy, account.observed, percent / 100),
            strict=True,
        ):
            values.append(value)
    return course


def errors(shape: Load, course: Course, scrape: int, seed: int) -> tuple[list[float], list[float]]:
    """Return the errors, in percentage points, of our mean and of the mean of the gauge, over windows that slide by one
    scrape: at least a minute and four scrapes, from one scrape to another.
    """
    count = max(4, 60 // scrape)
    first = 20 + Random(seed).uniform(0, scrape)
    scrapes = [first + i * scrape for i in range(int((course.times[-1] - first) / scrape))]
    indexes = [course.at(t) for t in scrapes]
    ours, gauges = [], []
    for i in range(count, len(scrapes)):
        start, end = indexes[i - count], indexes[i]
        true = (shape.integral(scrapes[i]) - shape.integral(scrapes[i - count])) / (scrapes[i] - scrapes[i - count])
        mean = (course.busy[end] - course.busy[start]) / (course.observed[end] - course.observed[start])
        ours.append(100 * (mean - true))
        gauges.append(100 * (statistics.fmean(course.gauge[j] for j in indexes[i - count + 1 : i + 1]) - true))
    return ours, gauges


def rows() -> list[dict[str, Any]]:
    """Return a row for every load and scrape interval."""
    result = []
    for number, (period, duty) in enumerate(LOADS):
        shape = load({"shape": "square", "high": 1.0, "low": 0.0, "period": period, "duty": duty})
        course = run(shape, SECONDS, seed=number)
        for scrape in SCRAPES:
            ours, gauges = errors(shape, course, scrape, seed=scrape)
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


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = [list(rows[0]), ["---:"] * len(rows[0])]
    lines += [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/accuracy.md")
    options, _ = parser.parse_known_args()
    made = table(rows())
    if not options.write:
        print("# error of the mean utilization in percentage points")
        print(made)
        return
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
