"""When a worker that works is replaced by a fresh one all the same: the driver's library may leak, and it never shows
a GPU that was plugged in after it was opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpugauge.driver.client import Worker

# Why a worker is replaced without having failed. `settings`: other devices are to be read.
RECYCLES = ("memory", "age", "cards", "settings")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may grow to: resident bytes, and seconds of age, 0 for no limit. It is looked at every
    `look_seconds`, and not replaced for its size before `least_seconds`: a limit below what a worker needs from the
    start must not become a loop.
    """

    resident_bytes: int = 256 << 20
    age_seconds: float = 0.0
    look_seconds: float = 5.0
    least_seconds: float = 60.0


class Upkeep:
    """Watches one worker after the other. `bus` lists the GPUs that the bus shows, None if it cannot be known."""

    def __init__(self, limits: Limits, bus: Callable[[], frozenset[str] | None]) -> None:
        self.limits, self._bus = limits, bus
        self._born = self._due = 0.0
        self._enumerated: frozenset[str] | None = None
        self._fresh: frozenset[str] = frozenset()
        self._devices: frozenset[str] = frozenset()

    def begin(self, devices: frozenset[str], now: float) -> None:
        """A new worker opens the driver at `now` (monotonic seconds), to read `devices`."""
        self._devices = devices
        self._born, self._due = now, now + self.limits.look_seconds
        self._enumerated, self._fresh = self._bus(), frozenset()

    def due(self, worker: Worker, devices: frozenset[str], now: float) -> str | None:
        """Return why the worker is to be replaced now, one of RECYCLES, or None; `devices` are to be read by now."""
        limits, age = self.limits, now - self._born
        if devices != self._devices:
            return "settings"
        if limits.age_seconds and age >= limits.age_seconds:
            return "age"
        if now < self._due:
            return None
        self._due = now + limits.look_seconds
        if self._devices_came():
            return "cards"
        if age >= limits.least_seconds and (worker.resident_bytes() or 0) > limits.resident_bytes:
            return "memory"
        return None

    def _devices_came(self) -> bool:
        """Whether a GPU came that stayed until the second look: the driver takes a moment to set it up. A GPU that
        leaves and comes back counts, since this worker has lost it.
        """
        seen = self._bus()
        if seen is None or self._enumerated is None:
            self._enumerated = seen if self._enumerated is None else self._enumerated
            return False
        settled = self._fresh & seen
        self._fresh = seen - self._enumerated
        self._enumerated &= seen
        return bool(settled)
