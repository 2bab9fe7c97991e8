"""At each tick: ask every collector, put the sections into one frozen snapshot, publish it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpugauge.collectors.base import Collector, Tick
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.driver.api import DriverView, Reply
from gpugauge.forecast import Timetable
from gpugauge.logline import Condition, fields
from gpugauge.snapshot import Health, Section, Snapshot

log = logging.getLogger("gpugauge.sampler")

# Seconds before an expected scrape at which a tick begins, besides what the last one took: scrapes and threads come
# within some milliseconds of their time.
LEAD = 0.08


class Sampler:
    """Owns the collectors and their accounts; all of them run in the one thread that calls `run`."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        driver: Callable[[], tuple[DriverView, tuple[Reply, ...]]],
        publish: Callable[[Snapshot], None],
        interval: float,
        select: Callable[[Section], Section] = lambda section: section,
        exporter: ExporterCollector | None = None,
        timetable: Timetable | None = None,
        idle: float = 0.0,
    ) -> None:
        self._collectors, self._driver, self._publish = collectors, driver, publish
        self._interval, self._idle = interval, idle
        self._select = select
        self._exporter = exporter or ExporterCollector()
        self._timetable = timetable or Timetable()
        self._health: dict[str, Health] = {}
        self._trouble = Condition(log, logging.ERROR)
        self._next = 0.0

    def configure(
        self, collectors: Sequence[Collector], interval: float, idle: float, select: Callable[[Section], Section]
    ) -> None:
        """Go on with these from the next tick; collectors that were there before keep their accounts."""
        self._collectors, self._interval, self._idle, self._select = collectors, interval, idle, select

    def run(self, stop: threading.Event, alive: Callable[[], None] = lambda: None) -> None:
        """Tick until `stop` is set; `alive` is called after each tick that went well (the service manager's watchdog).
        One that did not costs its snapshot; the former grows old, and if that goes on, so does the watchdog.
        """
        self._next = time.monotonic()
        while not stop.is_set():
            if not self._ticks(stop, alive):
                time.sleep(min(1.0, self._interval))

    def _ticks(self, stop: threading.Event, alive: Callable[[], None]) -> bool:
        try:
            self._tick_and_wait(stop, alive)
        except Exception as error:  # noqa: BLE001  (no memory, say; what it was is logged, once)
            with contextlib.suppress(MemoryError):
                self._trouble.failing("no snapshot can be made", error=f"{type(error).__name__}: {error}")
            return False
        return True

    def _tick_and_wait(self, stop: threading.Event, alive: Callable[[], None]) -> None:
        began = time.monotonic()
        self.tick(time.time(), began)
        self._trouble.recovered("snapshots are made again")
        alive()
        lead = LEAD + min(0.5 * self._interval, time.monotonic() - began)
        # A tick that came late (a stopped or busy machine) is not made up for.
        self._next = max(self._timetable.next_tick(self._next, self._interval, self._idle, lead), time.monotonic())
        stop.wait(self._next - time.monotonic())

    def tick(self, timestamp: float, monotonic: float) -> Snapshot:
        """Collect, publish and return one snapshot."""
        view, replies = self._driver()
        sections: list[Section] = []
        tick = Tick(timestamp, monotonic, view, replies, sections=sections)
        collectors, select = self._collectors, self._select
        for collector in collectors:
            section = self._collect(collector, tick)
            if section:
                sections.append(section)
        health = {collector.name: self._health[collector.name] for collector in collectors}
        sections.append(self._exporter.collect(replace(tick, health=health)))
        snapshot = Snapshot(timestamp, monotonic, tuple(map(select, sections)), health)
        self._publish(snapshot)
        return snapshot

    def _collect(self, collector: Collector, tick: Tick) -> Section | None:
        """Run one collector; the one place that turns whatever it raises into its health."""
        before = self._health.get(collector.name)
        last_success, failures = (before.last_success, before.failures) if before else (0.0, 0)
        section, error = None, ""
        start = time.perf_counter()
        try:
            section = collector.collect(tick)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            if before is None or before.success:
                log.exception("a collector fails", extra=fields(collector=collector.name))
        else:
            last_success = tick.timestamp
            if before is not None and not before.success:
                log.info("a collector works again", extra=fields(collector=collector.name))
        duration = time.perf_counter() - start
        self._health[collector.name] = Health(not error, duration, last_success, failures + bool(error), error)
        return section
