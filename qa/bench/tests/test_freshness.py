"""Means over any 60 s as Prometheus computes them, from the scraped text of a daemon in simulated time.

Loads and scrapers are drawn. The truth is a counter that is integrated from the drawn load up to the instant of each
scrape, and evaluated like ours.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from tests.simulation import scenario
from tests.virtual import ACCEPT, START

from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverFacts, DriverView, Group, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.exposition.render import Exposition
from gpugauge.simulator.worker import service as simulated_service
from qa.bench.timeline import Costs, Timeline

WINDOW, SETTLED, SECONDS = 60.0, 150.0, 900.0
Gaps = Callable[[random.Random], Iterator[float]]
Points = list[tuple[float, float]]


# --- what is drawn ---


def regular(seconds: float, jitter: float = 0.0) -> Gaps:
    def gaps(drawn: random.Random) -> Iterator[float]:
        yield drawn.uniform(0, seconds)
        while True:
            yield seconds * drawn.uniform(1 - jitter, 1 + jitter) + drawn.uniform(-0.004, 0.004)

    return gaps


def any_gap(drawn: random.Random) -> Iterator[float]:
    while True:
        yield drawn.uniform(5, 25)


def bursts(drawn: random.Random) -> Iterator[float]:
    while True:
        yield drawn.uniform(8, 18)
        for _ in range(drawn.randint(1, 3)):
            yield drawn.choice([drawn.uniform(0.01, 0.2), drawn.uniform(0.2, 1.5)])


def pauses(drawn: random.Random) -> Iterator[float]:
    for _ in range(14):
        yield 10 + drawn.uniform(-0.004, 0.004)
    yield drawn.uniform(180, 300)
    yield from regular(10)(drawn)


def load(drawn: random.Random) -> Points:
    """Return [second, level] points of a load: steps to drawn levels, short and long ones by turns."""
    points, now, level = [(0.0, 0.0)], 1.0, 0.0
    while now < SECONDS + 20:
        longest = drawn.choice([0.5, 3.0, 30.0, 90.0])
        for _ in range(drawn.randint(1, 8)):
            before, level = level, drawn.choice([0.0, 1.0, 1.0, drawn.random()])
            points += [(now, before), (now + 0.001, level)]
            now += 0.1 + drawn.uniform(0, longest)
    return points


# --- the truth ---


def integrated(points: Points, until: float) -> float:
    """Return the integral of the straight lines between the points."""
    total = 0.0
    for (t0, y0), (t1, y1) in pairwise(points):
        if t0 >= until:
            break
        end = min(t1, until)
        y = y0 + (y1 - y0) * (end - t0) / (t1 - t0)
        total += (end - t0) * (y0 + y) / 2
    return total


def prometheus_rate(times: list[float], values: list[float], end: float) -> float | None:
    """Return rate(counter[60s]) at `end`, as in promql/functions.go, extrapolatedRate()."""
    start = end - WINDOW
    low, high = bisect_left(times, start), bisect_right(times, end)
    if high - low < 2:
        return None
    first, last = low, high - 1
    increase = values[last] - values[first]
    for before, after in pairwise(values[low:high]):
        assert after >= before, "a counter decreased"
    sampled = times[last] - times[first]
    average = sampled / (last - first)
    to_start, to_end = times[first] - start, end - times[last]
    if to_start >= 1.1 * average:
        to_start = average / 2
    if increase > 0:
        to_start = min(to_start, sampled * values[first] / increase)
    if to_end >= 1.1 * average:
        to_end = average / 2
    return increase * (sampled + to_start + to_end) / sampled / WINDOW


# --- the daemon ---


@dataclass
class Scraped:
    times: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)


class Daemon:
    """One GPU, with the simulated library, worker, inventory, collector and body, in the time of `timeline`."""

    def __init__(self, points: Points, drawn: random.Random, costs: Costs, until: float = float("inf")) -> None:
        listed = [[round(t, 6), y] for t, y in points]
        shape = f"{{shape: points, points: {listed}}}"
        made = scenario(f"gpus: {{model: h100}}\nprocesses: [{{pid: 7, gpus: [0], memory: 9GiB, load: {shape}}}]")
        made._start |= {"monotonic": 0.0, "unix": START}
        self.timeline: Timeline[Reply] = Timeline(
            self._read, self._tick, self._show, drawn, costs, lambda now: now < until
        )
        self._service = simulated_service(lambda: self.timeline.now)
        opened = self._service.answer({"id": 0, "op": "open", "simulate": made.simulation()})
        self._facts = DriverFacts(**opened.values["driver"])
        self._inventory, self._replies = Inventory({}), tuple[Reply, ...]()
        self._exposition = Exposition(1e9)
        self._sampler = Sampler([UtilizationCollector()], self._driver, self._exposition.publish, 1.0)
        self._text = ""

    def _driver(self) -> tuple[DriverView, tuple[Reply, ...]]:
        return DriverView(True, "ok", self._facts, self._inventory.devices(self.timeline.now)), self._replies

    def _read(self, groups: list[Group]) -> Reply:
        asked: list[Group] = groups if self._inventory.uuid(0) else ["static", "fast", "samples"]
        reply = self._service.answer({"id": 1, "op": "read", "index": 0, "groups": asked})
        self._inventory.apply(reply, self.timeline.now)
        return replace(reply, uuid=self._inventory.uuid(0) or "")

    def _tick(self, replies: list[Reply]) -> None:
        self._replies = tuple(replies)
        self._sampler.tick(START + self.timeline.now, self.timeline.now)

    def _show(self) -> None:
        self._text = self._exposition.respond(ACCEPT, None, self.timeline.now).body.decode()

    def value(self, name: str) -> float:
        """Return a counter of the engine gpu in the body of a scrape now."""
        found = re.search(rf'^{name}{{[^}}]*engine="gpu"[^}}]*}} (\S+)$', self._text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def let_come(self, name: str, gaps: Iterator[float]) -> Scraped:
        """Let a scraper come until the end of the test; return what it will have scraped."""
        scraped = Scraped()

        def come(at: float) -> None:
            def answer() -> None:
                # The timestamp of a sample in Prometheus is the begin of its scrape.
                scraped.times.append(at)
                scraped.busy.append(self.value("gpu_busy_seconds_total"))
                scraped.observed.append(self.value("gpu_observed_seconds_total"))
                come(max(self.timeline.now, at + next(gaps)))

            self.timeline.scrape(at, name, answer)

        come(next(gaps))
        return scraped

    def run(self, seconds: float) -> None:
        self.timeline.run(seconds)
        self._service.close()


def worst_points(points: Points, scraped: Scraped, drawn: random.Random, windows: int = 400) -> float:
    """Return the largest error of a mean over 60 s, in percentage points, of windows at drawn positions."""
    true = [integrated(points, at) for at in scraped.times]
    worst, found = 0.0, 0
    for _ in range(windows):
        end = drawn.uniform(SETTLED, scraped.times[-1])
        busy, right = (prometheus_rate(scraped.times, values, end) for values in (scraped.busy, true))
        observed, passed = (prometheus_rate(scraped.times, values, end) for values in (scraped.observed, scraped.times))
        if busy is None or right is None or not observed or not passed:
            continue
        found += 1
        worst = max(worst, abs(busy - right), abs(busy / observed - right / passed))
    assert found > windows / 4
    return 100 * worst


def errors(seed: int, *scrapers: Gaps, costs: Costs | None = None) -> list[float]:
    """Return the largest error of each scraper of one daemon."""
    drawn = random.Random(seed)
    points = load(drawn)
    daemon = Daemon(points, drawn, costs or Costs())
    scraped = [daemon.let_come(f"10.0.0.{i}", gaps(drawn)) for i, gaps in enumerate(scrapers)]
    daemon.run(SECONDS)
    return [worst_points(points, one, drawn) for one in scraped]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("seconds", [2, 5, 15])
@pytest.mark.parametrize("jitter", [0.0, 1 / 15, 0.2])
def test_means_of_a_scraper_with_jitter_are_within_a_point(seconds: float, jitter: float, seed: int) -> None:
    assert max(errors(seed, regular(seconds, jitter))) < 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gaps", [any_gap, bursts, pauses])
def test_means_of_a_scraper_without_a_period_are_within_two_points(gaps: Gaps, seed: int) -> None:
    assert max(errors(seed, gaps)) < 2


@pytest.mark.parametrize(("seconds", "jitter"), [(0.5, 0.0), (1, 0.0), (1, 0.2)])
def test_means_of_a_scraper_with_a_short_period_have_the_age_of_the_samples(seconds: float, jitter: float) -> None:
    assert max(errors(0, regular(seconds, jitter))) < 100 * 2.4 / WINDOW


@pytest.mark.parametrize("seed", range(2))
def test_means_of_several_scrapers_are_as_good(seed: int) -> None:
    first, second, third = errors(seed, regular(15, 0.2), regular(15), any_gap)

    assert (first < 1, second < 1, third < 2) == (True, True, True)


def test_scrape_never_waits_longer_than_30_ms_for_a_driver_that_hangs() -> None:
    drawn = random.Random(5)
    daemon = Daemon(load(drawn), drawn, Costs(), until=300.0)
    scraped = daemon.let_come("10.0.0.1", any_gap(drawn))
    daemon.run(SECONDS)
    delays = daemon.timeline.delays
    hanging = [delay for at, delay in zip(scraped.times, delays, strict=True) if at > 300]

    assert max(delays) <= 0.03 + 1e-9
    assert sum(delay > 0 for delay in hanging) <= 10 < len(hanging) / 2  # it is tried less and less often


def test_flood_of_scrapes_causes_no_readings() -> None:
    def flood(drawn: random.Random) -> Iterator[float]:
        yield 20.0
        while True:
            yield drawn.uniform(0.01, 0.1)

    def readings(*scrapers: Gaps) -> int:
        drawn = random.Random(1)
        daemon = Daemon([(0.0, 0.0), (1.0, 1.0)], drawn, Costs())
        for number, gaps in enumerate(scrapers):
            daemon.let_come(f"10.0.0.{number}", gaps(drawn))
        daemon.run(60.0)
        return daemon.timeline.readings

    # With a viewer there is a reading each second; the burst at the begin adds a few.
    assert readings(flood) <= 60 + 4
    assert readings(*[flood] * 20) <= 60 + 4


def test_readings_on_demand_are_limited_for_any_scrapers() -> None:
    for seed in range(5):
        drawn = random.Random(seed)
        daemon = Daemon([(0.0, 0.0), (1.0, 1.0)], drawn, Costs())
        for number in range(12):
            daemon.let_come(f"10.0.0.{number}", regular(drawn.uniform(0.2, 4), 0.5)(drawn))
        daemon.run(120.0)

        assert daemon.timeline.readings <= 120 * (1 + 2 + 0.2)  # some gaps are equal by chance, and foreseen in vain


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("costs", [Costs(), Costs(0.05, 0.05), Costs(0.02, 0.2), Costs(0.3, 0.1)])
def test_all_values_are_new_for_a_regular_scraper(costs: Costs, light: bool) -> None:
    """Also where a tick takes longer than the constant part of the lead. No scrape needs a reading of its own."""
    drawn, ages, at = random.Random(7), list[float](), dict[str, float]()
    shown, turns = dict(at), [0.0]

    def tick(found: list[tuple[float, list[Group]]]) -> None:
        at.update({group: began for began, groups in found for group in groups})
        turns.append(0.0 if light and turns[-1] else costs.ticking)
        timeline._costs = replace(costs, ticking=turns[-1])

    timeline = Timeline[tuple[float, list[Group]]](
        lambda groups: (timeline.now, groups), tick, lambda: shown.update(at), drawn, costs
    )
    for number in range(60):
        begin = 7 + 15 * number + drawn.uniform(-0.004, 0.004)

        def answer(number: int = number) -> None:
            if number > 4:
                ages.append(timeline.now - min(time for group, time in shown.items() if group != "slow"))

        timeline.scrape(begin, "prometheus", answer)
    timeline.run(100.0)
    readings = timeline.readings
    timeline.run(900.0)

    assert max(ages) < 0.12 + costs.reading + costs.ticking
    assert timeline.readings - readings <= 161
