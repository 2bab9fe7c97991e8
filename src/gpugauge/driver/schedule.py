"""How often each group of readings is asked for, and which is due."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.driver.api import Group

# What is read for a scrape that is expected, due or not: busy seconds are exact up to the last reading.
_FOR_SCRAPES: frozenset[Group] = frozenset({"fast", "samples"})


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: how often each group of readings is asked for, and how long one answer may take."""

    intervals: dict[Group, float]
    deadline: float = 2.0
    # Without persistence mode opening takes 1-3 s a GPU.
    open_deadline: float = 30.0
    # Longest time between two readings while nobody looks (Timetable.watched), if longer than the shortest interval.
    idle: float = 0.0

    @property
    def interval(self) -> float:
        """Seconds from one reading to the next while somebody looks."""
        return min(self.intervals.values())

    @property
    def limits(self) -> dict[Group, float]:
        """Seconds after which a group's values are too old to be shown."""
        return {group: 2 * every + 5 for group, every in self.intervals.items()}


class Schedule:
    """When each group is due next, in monotonic seconds."""

    def __init__(self) -> None:
        self._due: dict[Group, float] = {}

    def reset(self) -> None:
        """Let all groups be due."""
        self._due = {}

    def take(self, pace: Pace, now: float, *, scrape: bool = False) -> list[Group]:
        """Return the groups that are due, or wanted for a `scrape` that is near; count their intervals from now."""
        wanted = _FOR_SCRAPES if scrape else frozenset()
        due = [group for group in pace.intervals if group in wanted or now >= self._due.get(group, 0.0)]
        for group in due:
            # A quarter of an interval early is on time: ticks jitter, and a late read would shift all that follow.
            self._due[group] = now + 0.75 * pace.intervals[group]
        return due
