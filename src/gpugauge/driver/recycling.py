"""Planned replacement of a worker: the library may leak memory, and never enumerates a GPU that is plugged in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpugauge.driver.client import Worker

# The reasons for a planned replacement; `settings`: the devices to be read have changed.
RECYCLES = ("memory", "age", "cards", "settings")

# A GPU that is lost may have been repaired: an open library does not notice.
_RETRY_SECONDS = 600.0


class RecyclingLimits(NamedTuple):
    """Limits of a worker, 0 for none: resident bytes from a minimum age on, so that no loop begins, and its age."""

    resident_bytes: int = 256 << 20
    age_seconds: float = 0.0
    check_interval_seconds: float = 5.0
    memory_min_age_seconds: float = 60.0


class Recycling:
    """Decides when the worker is replaced. `bus` returns the GPUs on the bus, None if they are unknown."""

    def __init__(self, limits: RecyclingLimits, bus: Callable[[], frozenset[str] | None]) -> None:
        self.limits, self._bus = limits, bus
        self._started = self._next_check = 0.0
        self._enumerated: frozenset[str] | None = None
        self._added: frozenset[str] = frozenset()
        self._devices: frozenset[str] = frozenset()

    def begin(self, devices: frozenset[str], now: float) -> None:
        """Record that a new worker opens the driver at `now` (monotonic seconds) to read `devices`."""
        self._devices = devices
        self._started, self._next_check = now, now + self.limits.check_interval_seconds
        self._enumerated, self._added = self._bus(), frozenset()

    def due(self, worker: Worker, devices: frozenset[str], now: float, *, down: bool = False) -> str | None:
        """Return a reason of RECYCLES to replace the worker now, or None. `down`: one of the `devices` is not there."""
        limits, age = self.limits, now - self._started
        if devices != self._devices:
            return "settings"
        if limits.age_seconds and age >= limits.age_seconds:
            return "age"
        if now < self._next_check:
            return None
        self._next_check = now + limits.check_interval_seconds
        if self._devices_were_added() or (down and age >= _RETRY_SECONDS):
            return "cards"
        if age >= limits.memory_min_age_seconds and (worker.resident_bytes() or 0) > limits.resident_bytes:
            return "memory"
        return None

    def _devices_were_added(self) -> bool:
        """Return whether a GPU was added before the last check and is still there; one that was away counts, too."""
        present = self._bus()
        if present is None or self._enumerated is None:
            self._enumerated = present if self._enumerated is None else self._enumerated
            return False
        settled = self._added & present
        self._added = present - self._enumerated
        self._enumerated &= present
        return bool(settled)
