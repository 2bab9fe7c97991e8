"""The schedule of the readings: when one is due, the interval of each group, and the groups that are due."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import NamedTuple

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.driver.api import Group

# Groups that are read for a scrape whether due or not: busy seconds are exact up to the last reading.
SCRAPE_GROUPS: frozenset[Group] = frozenset({"fast", "samples"})
# A group is due this share of its interval early: ticks have jitter, and a late reading would delay all that follow.
_EARLY = 0.25


class ReadingIntervals(NamedTuple):
    """The interval of each group of readings and the deadlines of a call, in seconds."""

    intervals: dict[Group, float]
    deadline: float = 2.0
    # Without persistence mode, opening takes 1 to 3 s per GPU.
    open_deadline: float = 30.0
    # The longest gap between two readings without a viewer (see ScrapeForecast), if longer than the shortest interval.
    idle: float = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two readings while there is a viewer."""
        return min(self.intervals.values())

    @property
    def limits(self) -> dict[Group, float]:
        """Seconds after which the values of a group are dropped: a GPU that hangs must not cost another one its own."""
        return {group: every + max(every, self.idle) + 5 for group, every in self.intervals.items()}


def wanted(forecast: ScrapeForecast, intervals: ReadingIntervals, now: float, lead: float) -> frozenset[Group]:
    """Return the groups that are read at `now` for an imminent scrape, due or not, where its scraper is regular."""
    interval, groups = intervals.interval, intervals.intervals
    near = SCRAPE_GROUPS if forecast.is_near(now, interval, lead) else frozenset()
    return near | {group for group, every in groups.items() if forecast.is_expected(now, interval, lead, every)}


class Schedule:
    """The time at which each group is due next, in monotonic seconds."""

    def __init__(self) -> None:
        self._due: dict[Group, float] = {}

    def reset(self) -> None:
        """Make all groups due."""
        self._due = {}

    def take(
        self, intervals: ReadingIntervals, now: float, wanted: Collection[Group] = (), *, only: bool = False
    ) -> list[Group]:
        """Return the groups that are due, and those `wanted`, or these `only`; their intervals start again now."""
        due = () if only else [group for group in intervals.intervals if now >= self._due.get(group, 0.0)]
        taken = [group for group in intervals.intervals if group in wanted or group in due]
        self._due |= {group: now + (1 - _EARLY) * intervals.intervals[group] for group in taken}
        return taken


class Pace:
    """When the next reading is due: by the forecast, or on demand. Any thread may call `wake` and `demand`."""

    def __init__(self, forecast: ScrapeForecast) -> None:
        self._forecast = forecast
        self._wake, self._demanded, self._due = threading.Event(), False, time.monotonic()
        self.on_demand = self.scheduled = False  # why there is a reading now; neither after `wake`

    def wake(self) -> None:
        """End the wait for the next reading."""
        self._wake.set()

    def demand(self) -> None:
        """Let a reading begin at once, in addition to those of the schedule."""
        self._demanded = True
        self._wake.set()

    def begin(self) -> None:
        """Begin a reading. One on demand comes before one of the schedule, which follows at once if it is due."""
        self._wake.clear()
        self.on_demand, self._demanded = self._demanded, False
        self.scheduled = not self.on_demand and time.monotonic() >= self._due

    def end(self, intervals: ReadingIntervals, lead: float, *, doubted: bool = False) -> None:
        """Determine when the next reading is due: `lead` seconds before a scrape, and soon if a GPU is `doubted`."""
        now = time.monotonic()
        if self.scheduled:
            # Readings that were missed while a call hung are not made up for.
            self._due = max(now, self._forecast.next_tick(self._due, intervals.interval, intervals.idle, lead))
        elif self.on_demand:  # the scrape may have changed the forecast
            self._due = min(self._due, self._forecast.next_tick(now, intervals.interval, intervals.idle, lead))
        if doubted:
            self._due = min(self._due, now + intervals.interval)

    def wait(self, seconds: float) -> None:
        """Wait until the next reading is due, and no longer than `seconds`."""
        self._wake.wait(max(0.0, min(self._due - time.monotonic(), seconds)))
