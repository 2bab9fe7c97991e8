"""The sampler: each tick runs every collector and publishes their sections as one frozen snapshot."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from gpugauge.base import guard
from gpugauge.base.forecast import ScrapeForecast
from gpugauge.base.logline import fields
from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.driver.api import DriverView, Reply
from gpugauge.node.node import Node
from gpugauge.snapshot import Health, Section, Snapshot

log = logging.getLogger("gpugauge.sampler")

# If no reading has caused a tick before, one begins this long before an expected scrape, in addition to the duration of
# the last tick. A reading has a longer lead (driver/reader.py): a tick before its end would delay the next one.
LEAD_SECONDS = 0.03
# As a share of the interval: how much longer a tick waits for the reading that is to cause it.
_PATIENCE_INTERVALS = 0.25


class Sampler:
    """Owns the collectors and their health. All collectors run in the thread that calls `run`."""

    def __init__(
        self,
        collectors: Sequence[RegisteredCollector],
        driver: Callable[[], tuple[DriverView, tuple[Reply, ...]]],
        publish: Callable[[Snapshot], None],
        interval: float,
        exporter: ExporterCollector | None = None,
        forecast: ScrapeForecast | None = None,
        idle: float = 0.0,
        *,
        after_readings: bool = False,
    ) -> None:
        """`after_readings`: `wake` is called after each reading of the driver, so that ticks without it are late."""
        self._collectors, self._driver, self._publish = collectors, driver, publish
        self._interval, self._idle = interval, idle
        self._exporter = exporter or ExporterCollector()
        self._forecast = forecast or ScrapeForecast()
        self._health: dict[str, Health] = {}
        self._guard = guard.Guard("sampler")
        self._patience = _PATIENCE_INTERVALS if after_readings else 0.0
        self._wake = threading.Event()

    def configure(self, collectors: Sequence[RegisteredCollector], interval: float, idle: float) -> None:
        """Use these values from the next tick on. Collectors that were present before keep their health."""
        self._collectors, self._interval, self._idle = collectors, interval, idle

    def run(
        self,
        stop: threading.Event,
        after_tick: Callable[[], None] = lambda: None,
        while_waiting: Callable[[], None] = lambda: None,
        every: float = math.inf,
    ) -> None:
        """Tick until `stop` is set; a failed tick publishes nothing. `while_waiting` is called each `every` seconds."""
        due = time.monotonic()
        while not stop.is_set():
            self._wake.clear()
            began = time.monotonic()
            if not self._guard.run(partial(self.tick, time.time(), began), after_tick):
                time.sleep(min(1.0, self._interval))
                continue
            if stop.is_set():
                break
            due = self._next_tick(due, began)
            while not self._wake.wait(min(every, due - time.monotonic())) and time.monotonic() < due:
                while_waiting()

    def wake(self) -> None:
        """Tick now, in the thread that calls `run`. May be called from any thread, and by a signal handler."""
        self._wake.set()

    def _next_tick(self, due: float, began: float) -> float:
        """Return the time of the next tick if no reading causes one before. The last tick was due at `due`."""
        now = time.monotonic()
        self._forecast.record_tick(min(0.5 * self._interval, now - began))
        lead = LEAD_SECONDS + self._forecast.ticking
        patience = self._patience * self._interval
        # Missed ticks (a stopped or busy machine) are not made up for, and one that came early puts off no other.
        last = began if self._patience else min(due, began)
        return max(now, self._forecast.next_tick(last, self._interval + patience, self._idle + patience, lead))

    def tick(self, timestamp: float, monotonic: float) -> Snapshot:
        """Collect, publish and return one snapshot."""
        view, replies = self._driver()
        sections: list[Section] = []
        tick = Tick(timestamp, monotonic, view, replies, node=Node(timestamp, monotonic, driver=view))
        collectors = self._collectors
        for collector in collectors:
            section = self._collect(collector, tick)
            if section:
                sections.append(section)
        health = {collector.name: self._health[collector.name] for collector in collectors}
        for thread in guard.failed():
            error = thread.failing
            health[f"{thread.name} thread"] = Health(not error, None, thread.last_success, thread.failures, error)
        sections.append(self._exporter.collect(replace(tick, health=health)))
        snapshot = Snapshot(timestamp, monotonic, tuple(sections), health, tick.node)
        self._publish(snapshot)
        return snapshot

    def _collect(self, collector: RegisteredCollector, tick: Tick) -> Section | None:
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
