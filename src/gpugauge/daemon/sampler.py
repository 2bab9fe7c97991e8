"""The sampler: each tick runs every collector and publishes their sections as one frozen snapshot."""

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
from gpugauge.forecast import ScrapeForecast
from gpugauge.logline import Condition, fields
from gpugauge.snapshot import Health, Section, Snapshot

log = logging.getLogger("gpugauge.sampler")

# A tick begins this long before an expected scrape, in addition to the duration of the last tick. It covers the jitter
# of scrapes and thread wake-ups, some milliseconds each.
LEAD_SECONDS = 0.08


class Sampler:
    """Owns the collectors and their health. All collectors run in the thread that calls `run`."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        driver: Callable[[], tuple[DriverView, tuple[Reply, ...]]],
        publish: Callable[[Snapshot], None],
        interval: float,
        select: Callable[[Section], Section] = lambda section: section,
        exporter: ExporterCollector | None = None,
        forecast: ScrapeForecast | None = None,
        idle: float = 0.0,
    ) -> None:
        self._collectors, self._driver, self._publish = collectors, driver, publish
        self._interval, self._idle = interval, idle
        self._select = select
        self._exporter = exporter or ExporterCollector()
        self._forecast = forecast or ScrapeForecast()
        self._health: dict[str, Health] = {}
        self._snapshot_failure = Condition(log, logging.ERROR)
        self._next = 0.0

    def configure(
        self, collectors: Sequence[Collector], interval: float, idle: float, select: Callable[[Section], Section]
    ) -> None:
        """Use these values from the next tick on. Collectors that were present before keep their health."""
        self._collectors, self._interval, self._idle, self._select = collectors, interval, idle, select

    def run(self, stop: threading.Event, after_tick: Callable[[], None] = lambda: None) -> None:
        """Tick until `stop` is set; call `after_tick` after each successful tick. A failed tick publishes nothing: the
        previous snapshot stays, becomes stale if failures continue, and the watchdogs expire.
        """
        self._next = time.monotonic()
        while not stop.is_set():
            if not self._try_tick(stop, after_tick):
                time.sleep(min(1.0, self._interval))

    def _try_tick(self, stop: threading.Event, after_tick: Callable[[], None]) -> bool:
        """Tick and wait; return whether the tick succeeded."""
        try:
            self._tick_and_wait(stop, after_tick)
        except Exception as error:  # noqa: BLE001  (out of memory, for example; the condition logs it once)
            with contextlib.suppress(MemoryError):
                self._snapshot_failure.failing("tick failed", error=f"{type(error).__name__}: {error}")
            return False
        return True

    def _tick_and_wait(self, stop: threading.Event, after_tick: Callable[[], None]) -> None:
        began = time.monotonic()
        self.tick(time.time(), began)
        self._snapshot_failure.recovered("tick succeeded again")
        after_tick()
        lead = LEAD_SECONDS + min(0.5 * self._interval, time.monotonic() - began)
        # Missed ticks (a stopped or busy machine) are not made up for.
        self._next = max(self._forecast.next_tick(self._next, self._interval, self._idle, lead), time.monotonic())
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
        """Run one collector and record its health. Any exception of the collector ends here."""
        before = self._health.get(collector.name)
        last_success, failures = (before.last_success, before.failures) if before else (0.0, 0)
        section, error = None, ""
        start = time.perf_counter()
        try:
            section = collector.collect(tick)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            if before is None or before.success:
                log.exception("collector failed", extra=fields(collector=collector.name))
        else:
            last_success = tick.timestamp
            if before is not None and not before.success:
                log.info("collector recovered", extra=fields(collector=collector.name))
        duration = time.perf_counter() - start
        self._health[collector.name] = Health(not error, duration, last_success, failures + bool(error), error)
        return section
