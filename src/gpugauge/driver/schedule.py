"""The schedule of the readings: the interval of each group, and the groups that are due."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.driver.api import Group

# Groups that are read for an expected scrape whether due or not: busy seconds are exact up to the last reading.
_SCRAPE_GROUPS: frozenset[Group] = frozenset({"fast", "samples"})
# A group is due this share of its interval early: ticks have jitter, and a late reading would delay all that follow.
_EARLY = 0.25


@dataclass(frozen=True, slots=True)
class ReadingIntervals:
    """The interval of each group of readings and the deadlines of a reply, in seconds."""

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
        """Seconds after which the values of a group are dropped."""
        return {group: 2 * every + 5 for group, every in self.intervals.items()}


class Schedule:
    """The time at which each group is due next, in monotonic seconds."""

    def __init__(self) -> None:
        self._due: dict[Group, float] = {}

    def reset(self) -> None:
        """Make all groups due."""
        self._due = {}

    def take(self, intervals: ReadingIntervals, now: float, *, scrape: bool = False) -> list[Group]:
        """Return the groups that are due, or needed for an imminent `scrape`; their intervals start again now."""
        wanted = _SCRAPE_GROUPS if scrape else frozenset()
        due = [group for group in intervals.intervals if group in wanted or now >= self._due.get(group, 0.0)]
        for group in due:
            self._due[group] = now + (1 - _EARLY) * intervals.intervals[group]
        return due
