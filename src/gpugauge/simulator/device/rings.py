"""The sample rings of a simulated GPU: entries at a period with jitter, of which only the last are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

# How long the machine had been up, idle, when the scenario began: 10 days. The driver counts from boot.
UPTIME = 864_000.0


class Ring:
    """`capacity` entries at most, `period` seconds apart, each up to half of `jitter` periods early or late.
    With `dry_when_idle` nothing is entered while the GPU has no process; at each of `clock_steps` the driver's clock
    jumps by so many seconds.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.capacity: int = plain["capacity"]
        self._period: float = plain["period"]
        self._jitter: float = plain["jitter"]
        self._dry_when_idle: bool = plain["dry_when_idle"]
        self._steps: list[list[float]] = plain["clock_steps"]
        # All rings of a GPU are drained at once.
        self._marks = lru_cache(maxsize=2)(self._made_marks)

    @property
    def span(self) -> float:
        """Seconds that it holds."""
        return self.capacity * self._period

    def stamp(self, t: float) -> int:
        """The driver's microseconds at a second of the scenario."""
        jumps = sum(jump for second, jump in self._steps if second <= t) if self._steps else 0.0
        return round(1e6 * (UPTIME + t + jumps))

    def samples(
        self, after: int, t: float, busy: Callable[[float], float] | None, occupied: Callable[[float], bool]
    ) -> list[tuple[int, int]]:
        """Return the entries with later stamps than `after`, oldest first: stamp, and percent of the time since the
        entry before. `busy` counts busy seconds; None stands for none ever.
        """
        last = int(t / self._period) if t >= 0 else int(t / self._period) - 1
        if self._time(last) > t:
            last -= 1
        # Without steps of the clock the newest that the caller has seen tells where to begin.
        first = last - self.capacity + 1
        if not self._steps and after:
            first = max(first, int((after / 1e6 - UPTIME) / self._period) - 1)
        found = []
        counted, until = 0.0, None  # busy seconds, and the second until which they are counted
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

    def _made_marks(self, first: int, last: int) -> list[tuple[float, int]]:
        """The second and the stamp of entries, and before them those of the entry before."""
        times = [self._time(number) for number in range(first - 1, last + 1)]
        return [(time, self.stamp(time)) for time in times]

    def _time(self, number: int) -> float:
        """The second of an entry. Multiplying by a large odd number scatters the low bits: the same jitter each run."""
        scattered = (number * 2654435761 & 0xFFFF) / 0xFFFF - 0.5
        return (number + self._jitter * scattered) * self._period
