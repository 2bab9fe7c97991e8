"""The sample rings of a simulated GPU: the latest entries of a series with a period and jitter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

# Seconds from boot to the start of the scenario, idle: 10 days. The driver counts from boot.
UPTIME = 864_000.0


class Ring:
    """The sample rings of a GPU in a scenario (scenario/gpuspec.py)."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.capacity: int = plain["capacity"]
        self._period: float = plain["period"]
        self._jitter: float = plain["jitter"]
        self._dry_when_idle: bool = plain["dry_when_idle"]
        self._steps: list[list[float]] = plain["clock_steps"]
        # All rings of a GPU are read at the same second.
        self._marks = lru_cache(maxsize=2)(self._compute_marks)

    @property
    def span(self) -> float:
        """The seconds that a full ring covers."""
        return self.capacity * self._period

    def stamp(self, t: float) -> int:
        """Return the time of the driver in microseconds at a second of the scenario."""
        jumps = sum(jump for second, jump in self._steps if second <= t) if self._steps else 0.0
        return round(1e6 * (UPTIME + t + jumps))

    def samples(
        self, after: int, t: float, busy: Callable[[float], float] | None, occupied: Callable[[float], bool]
    ) -> list[tuple[int, int]]:
        """Return the entries after `after`, oldest first: time of the driver, busy percent since the one before."""
        last = int(t / self._period) if t >= 0 else int(t / self._period) - 1
        if self._time(last) > t:
            last -= 1
        # Without clock steps, the entries up to `after` need not be computed.
        first = last - self.capacity + 1
        if not self._steps and after:
            first = max(first, int((after / 1e6 - UPTIME) / self._period) - 1)
        found = []
        counted, until = 0.0, None  # busy seconds until a second
        for (before, _), (time, stamp) in pairwise(self._marks(first, last)):
            if stamp <= after or (self._dry_when_idle and not occupied(time)):
                continue
            percent = 0
            if busy:
                begun = counted if until == before else busy(before)
                counted, until = busy(time), time
                percent = max(0, min(100, round(100 * (counted - begun) / (time - before))))
            found.append((stamp, percent))
        return found

    def _compute_marks(self, first: int, last: int) -> list[tuple[float, int]]:
        """Return the second and the time of the driver of entries, preceded by those of the entry before."""
        times = [self._time(number) for number in range(first - 1, last + 1)]
        return [(time, self.stamp(time)) for time in times]

    def _time(self, number: int) -> float:
        """Return the second of an entry. The product with a large odd number is a reproducible jitter."""
        scattered = (number * 2654435761 & 0xFFFF) / 0xFFFF - 0.5
        return (number + self._jitter * scattered) * self._period
