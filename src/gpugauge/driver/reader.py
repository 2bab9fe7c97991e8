"""Readings of all GPUs through one worker: when one is due, the interval of each group, the groups that are due, the
GPUs that may be read, and their replies.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.driver.api import Group, Reply
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.codes import TOO_SLOW
from gpugauge.driver.inventory import Inventory

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


# Seconds: the first quarantine is twice the base, each further one twice the one before, up to the maximum.
_BASE_SECONDS, _MAX_SECONDS = 15.0, 600.0
# The failures of a GPU are forgotten after it has replied for this long.
_FORGET_SECONDS = 600.0


class Quarantine:
    """Suspect GPUs by index; times are monotonic seconds."""

    def __init__(self) -> None:
        self._suspects: dict[int, tuple[int, float]] = {}  # number of failures, and when the GPU may be read again

    def __contains__(self, index: int) -> bool:
        return index in self._suspects

    def may_read(self, index: int, now: float) -> bool:
        """Return whether a GPU may be read now."""
        return index not in self or now >= self._suspects[index][1]

    def record_failure(self, index: int, now: float, *, hangs: bool) -> float | None:
        """Record a failure; return the seconds of quarantine, None for the first crash: it may be a coincidence."""
        failures = self._suspects.get(index, (0, 0.0))[0] + 1
        seconds = min(_MAX_SECONDS, _BASE_SECONDS * 2.0**failures) if hangs or failures > 1 else 0.0
        self._suspects[index] = failures, now + seconds
        return seconds or None

    def record_reply(self, index: int, now: float) -> None:
        """Record a reply; the failures of the GPU are forgotten when it has replied for long enough."""
        if index in self and now - self._suspects[index][1] > _FORGET_SECONDS:
            del self._suspects[index]

    def clear(self) -> None:
        """Forget all GPUs: the indexes may mean other ones now."""
        self._suspects.clear()


# A reading ends this long before an expected scrape, and so long before the tick that serves it must begin. It is for
# the jitter of scrapes and thread wake-ups, some milliseconds each.
LEAD_SECONDS, _TICK_LEAD_SECONDS = 0.08, 0.06
# The deadline of a call in the first reading of a GPU by a worker, in deadlines. The other GPUs wait: their values are
# dropped after some seconds, and a worker that hangs has to be replaced before.
_FIRST_READING = 2
# A GPU whose calls in one reading take longer than this is slow, and the seconds for all slow GPUs in one reading.
_SLOW_SECONDS, _SLOW_TURN_SECONDS = 0.25, 2.0
HANGS, CRASHES_WORKER = QUARANTINED = ("hangs", "crashes_worker")


def lead(reading: float, ticking: float) -> float:
    """Return how long before a scrape a reading begins, by the seconds that a reading and a tick take."""
    return reading + max(LEAD_SECONDS, _TICK_LEAD_SECONDS + ticking)


class ReadError(Exception):
    """The worker hung or ended while it read the GPU at `index`, None if before the first GPU."""

    def __init__(self, index: int | None, cause: Exception) -> None:
        super().__init__(f"worker failed{'' if index is None else f' while it read GPU {index}'}: {cause}")
        self.index = index
        self.hangs = isinstance(cause, WorkerHangsError)


class Reader:
    """Reads GPUs into the inventory. `receive` returns the reply with an id within a deadline, as Worker.receive()."""

    def __init__(
        self, inventory: Inventory, forecast: ScrapeForecast, receive: Callable[[Worker, int, float], Reply]
    ) -> None:
        self._inventory, self._forecast, self._receive = inventory, forecast, receive
        self._schedule, self._quarantine = Schedule(), Quarantine()
        self.lead = LEAD_SECONDS
        self.slow: list[int] = []
        """The GPUs whose calls take long, in the order in which they are read, after the others."""
        self._failed: list[Reply] = []  # of this reading
        self.read_at = -math.inf
        """Begin of the last complete reading of what a scrape needs, in monotonic seconds."""

    def begin(self, worker: int, *, same_devices: bool) -> None:
        """Record that a worker, by its ordinal, has opened the driver. Other devices end the quarantine."""
        if not same_devices:
            self._quarantine.clear()
        self._schedule.reset()
        self.slow.clear()
        self._inventory.begin(worker, same_devices=same_devices)

    def read(
        self,
        worker: Worker,
        device_count: int,
        intervals: ReadingIntervals,
        devices: frozenset[str],
        now: float,
        *,
        on_demand: bool = False,
    ) -> Reply | None:
        """Request all GPUs; the first missing reply names one. Return a reply if none can be read. Raises ReadError."""
        near = SCRAPE_GROUPS if on_demand else wanted(self._forecast, intervals, now, self.lead)
        due = self._schedule.take(intervals, now, near, only=on_demand)
        included = set(range(device_count)) - self._inventory.excluded.keys() - self._inventory.suspended()
        readable = (index for index in included if self._quarantine.may_read(index, now))
        indexes = sorted(readable, key=lambda index: index in self._quarantine)  # suspect GPUs last
        slow = [index for index in self.slow if index in indexes]
        self._failed = []

        def read(indexes: list[int]) -> None:
            current: int | None = None
            try:
                numbers = worker.read([(index, self._groups(index, due, intervals, on_demand)) for index in indexes])
                for index, number in zip(indexes, numbers, strict=True):
                    current = index
                    self._accept(index, self._receive(worker, number, self._deadline(index, intervals)), devices)
            except (WorkerHangsError, WorkerGoneError) as error:
                raise ReadError(current, error) from error

        read([index for index in indexes if index not in slow])
        took = min(0.5 * intervals.interval, time.monotonic() - now)
        self.lead = lead(took, self._forecast.ticking)
        if SCRAPE_GROUPS.issubset(due):
            self.read_at = now
        begin = time.monotonic()
        for index in slow if not on_demand else ():
            if time.monotonic() - begin < _SLOW_TURN_SECONDS:
                self.slow.remove(index)  # to the end, if it is still slow
                read([index])
        failed, included = self._failed, included - self._inventory.excluded.keys()
        if included and len(failed) == len(included) and all(map(self._inventory.is_silent, included)):
            codes = [reply.failed for reply in failed]
            return failed[codes.index(max(codes, key=codes.count))]
        return None

    def _accept(self, index: int, reply: Reply, devices: frozenset[str]) -> None:
        if reply.failed is not None:
            self._failed.append(reply)
        if reply.spent[0] > _SLOW_SECONDS or TOO_SLOW in (reply.failed, *reply.errors.values()):
            self.slow.append(index)
        self._quarantine.record_reply(index, time.monotonic())
        self._inventory.accept(index, reply, devices)

    def quarantine(self, index: int, *, hangs: bool) -> bool:
        """Quarantine the GPU at `index` if it hung, or if it ended a worker for the second time; return whether."""
        seconds = self._quarantine.record_failure(index, time.monotonic(), hangs=hangs)
        if seconds is None:
            return False
        self._inventory.fail_index(index, HANGS if hangs else CRASHES_WORKER, retry_seconds=seconds)
        return True

    def _deadline(self, index: int, intervals: ReadingIntervals) -> float:
        """Return the longest time of a call. Without persistence mode, the first reading of a GPU initialises it."""
        return intervals.deadline * (1 if self._inventory.uuid(index) else _FIRST_READING)

    def _groups(self, index: int, due: list[Group], intervals: ReadingIntervals, on_demand: bool) -> list[Group]:
        """Return the groups to read; all of them for a GPU that this worker has not identified yet."""
        if not self._inventory.uuid(index):
            return ["static", *intervals.intervals]
        again = () if on_demand else self._inventory.again(index, time.monotonic())
        return [*due, *(group for group in again if group not in due)] if again else due
