"""The threads of the daemon in simulated time: readings of the driver, ticks, and scrapes that may wait for a reading.

What decides (forecast, schedule, readings on demand) is the daemon's own code. Only the threads are imitated: each does
one thing after the other, wakes up late, and takes its time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Generic, TypeVar

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.daemon.assembly import READING_INTERVALS
from gpugauge.daemon.sampler import LEAD_SECONDS as TICK_LEAD
from gpugauge.driver.api import Group
from gpugauge.driver.reader import LEAD_SECONDS as READ_LEAD
from gpugauge.driver.reader import SCRAPE_GROUPS, ReadingIntervals, Schedule, lead, wanted
from gpugauge.web.refresh import WAIT_SECONDS, Refresh

INTERVAL, IDLE = 1.0, 5.0  # the defaults of sampling.interval_seconds and idle_interval_seconds
_INTERVALS = ReadingIntervals(READING_INTERVALS, idle=IDLE)
_PATIENCE = 0.25  # seconds that a tick waits for the reading that is to cause it
T = TypeVar("T")


@dataclass(frozen=True)
class Costs:
    """Seconds of a reading and of a tick, rendering included, and by how much a thread wakes up late at most."""

    reading: float = 0.006
    ticking: float = 0.006
    late: float = 0.003


class Timeline(Generic[T]):
    """`read` returns readings of groups from the driver as of `now`; `tick` takes the readings since the last tick, and
    `show` is called when the scrapes see them. `available` returns whether the driver answers.
    """

    def __init__(
        self,
        read: Callable[[list[Group]], T],
        tick: Callable[[list[T]], None],
        show: Callable[[], None],
        random: Random,
        costs: Costs | None = None,
        available: Callable[[float], bool] = lambda _: True,
    ) -> None:
        self._collect, self._tick, self._show = read, tick, show
        self._random, self._costs, self._available = random, costs or Costs(), available
        self.forecast, self._schedule = ScrapeForecast(), Schedule()
        self.refresh = Refresh(self._request, self.forecast)
        self.now, self.readings = 0.0, 0
        self.delays: list[float] = []  # seconds that each scrape waited
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._reading, self._demanded, self._next_reading, self._lead = False, False, 0.0, READ_LEAD
        self._ticking, self._woken, self._next_tick = False, False, 0.0
        self._read_at, self._unseen = -math.inf, list[T]()
        self._waiting: list[Callable[[], None]] = []
        self._at(0.0, self._supervise)

    def scrape(self, at: float, scraper: str, answer: Callable[[], None]) -> None:
        """Let a scraper come at a time; `answer` is called when it gets the body."""
        self._at(at, lambda: self._scrape(scraper, answer))

    def run(self, until: float) -> None:
        """Let the time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._number), action))

    def _soon(self, action: Callable[[], None]) -> None:
        self._at(self.now + self._random.uniform(0, self._costs.late), action)

    # --- the server ---

    def _scrape(self, scraper: str, answer: Callable[[], None]) -> None:
        begin, expected = self.now, self.forecast.record_scrape(scraper, self.now)
        waits = self.refresh.due(self.now, expected=expected, period=self.forecast.period)
        answered = False

        def respond() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.delays.append(self.now - begin)
                answer()

        if waits:
            self._waiting.append(respond)
            self._at(self.now + WAIT_SECONDS, respond)
        else:
            respond()

    def _request(self) -> None:
        self._demanded = True
        self._soon(self._supervise)

    # --- the supervisor ---

    def _supervise(self) -> None:
        if self._reading:
            return
        if self._demanded:
            self._demanded = False
            self._read(self._schedule.take(_INTERVALS, self.now, SCRAPE_GROUPS, only=True), on_demand=True)
        elif self.now >= self._next_reading:
            groups = wanted(self.forecast, _INTERVALS, self.now, self._lead)
            self._read(self._schedule.take(_INTERVALS, self.now, groups), on_demand=False)

    def _read(self, groups: list[Group], *, on_demand: bool) -> None:
        self._reading, began = True, self.now
        self.readings += 1
        if self._available(self.now):
            found = [self._collect(groups)]
            read_at = began if SCRAPE_GROUPS.issubset(groups) else self._read_at
            self._at(began + self._costs.reading, lambda: self._received(found, read_at, on_demand=on_demand))
            self._lead = lead(self._costs.reading, self.forecast.ticking)
        else:  # it hangs for the deadline of a reply
            self._at(began + _INTERVALS.deadline, lambda: self._received([], self._read_at, on_demand=on_demand))

    def _received(self, found: list[T], read_at: float, *, on_demand: bool) -> None:
        self._reading, self._read_at = False, read_at
        self._unseen += found
        last = self.now if on_demand else self._next_reading
        due = max(self.now, self.forecast.next_tick(last, INTERVAL, IDLE, self._lead))
        self._next_reading = min(self._next_reading, due) if on_demand else due
        self._at(self._next_reading + self._random.uniform(0, self._costs.late), self._supervise)
        self._soon(self._wake)
        self._supervise()

    # --- the sampler ---

    def _wake(self) -> None:
        self._woken = True
        self._sample()

    def _sample(self) -> None:
        if self._ticking or not (self._woken or self.now >= self._next_tick):
            return
        self._ticking, self._woken = True, False
        began, read_at = self.now, self._read_at
        unseen, self._unseen = self._unseen, []
        self._tick(unseen)
        self._at(began + self._costs.ticking, lambda: self._publish(began, read_at))

    def _publish(self, began: float, read_at: float) -> None:
        self._ticking = False
        self._show()
        self.refresh.publish(read_at, self.now)
        if not self.refresh.outstanding:
            waiting, self._waiting = self._waiting, []
            for respond in waiting:
                self._soon(respond)
        self.forecast.record_tick(self._costs.ticking)
        ahead = TICK_LEAD + self.forecast.ticking
        self._next_tick = self.forecast.next_tick(began, INTERVAL + _PATIENCE, IDLE + _PATIENCE, ahead)
        self._at(max(self.now, self._next_tick), self._sample)
        self._sample()
