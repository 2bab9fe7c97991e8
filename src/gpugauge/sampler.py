"""Once a tick: ask every collector, put the sections into one frozen snapshot, publish it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpugauge.collectors.base import Collector, Tick
from gpugauge.collectors.exporter import ExporterCollector
from gpugauge.driver.api import DriverView, Reply
from gpugauge.logs import fields
from gpugauge.snapshot import Health, Section, Snapshot

log = logging.getLogger("gpugauge.sampler")


class Sampler:
    """Owns the collectors and their accounts; all of them run in the one thread that calls `run`."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        driver: Callable[[], tuple[DriverView, tuple[Reply, ...]]],
        publish: Callable[[Snapshot], None],
        interval: float,
        select: Callable[[Section], Section] = lambda section: section,
    ) -> None:
        self._collectors, self._driver, self._publish, self._interval = collectors, driver, publish, interval
        self._select = select
        self._exporter = ExporterCollector()
        self._health: dict[str, Health] = {}

    def run(self, stop: threading.Event, alive: Callable[[], None] = lambda: None) -> None:
        """Tick until `stop` is set; `alive` is called after each tick (the service manager's watchdog)."""
        next_tick = time.monotonic()
        while not stop.is_set():
            self.tick(time.time(), time.monotonic())
            alive()
            # A tick that came late (a stopped or busy machine) is not made up for.
            next_tick = max(next_tick + self._interval, time.monotonic())
            stop.wait(next_tick - time.monotonic())

    def tick(self, timestamp: float, monotonic: float) -> Snapshot:
        """Collect, publish and return one snapshot."""
        view, replies = self._driver()
        sections: list[Section] = []
        tick = Tick(timestamp, monotonic, view, replies, sections=sections)
        for collector in self._collectors:
            section = self._collect(collector, tick)
            if section:
                sections.append(section)
        sections.append(self._exporter.collect(replace(tick, health=self._health)))
        snapshot = Snapshot(timestamp, monotonic, tuple(map(self._select, sections)), dict(self._health))
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
