"""For how long the driver is left alone, because somebody asked: to reset a GPU, to change MIG, to upgrade."""

from __future__ import annotations

import time

_STEADY = 2.0  # seconds by which the clocks may drift apart before the end is told anew


class Release:
    """Begun and ended by one thread, looked at by others. It ends by the monotonic clock, whatever the other does."""

    def __init__(self) -> None:
        self._end = 0.0
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        """Hold for so long from now, instead of what was asked before."""
        self._until, self._end = 0.0, time.monotonic() + seconds

    def end(self) -> None:
        """Hold no longer."""
        self._end = 0.0

    def left(self) -> float:
        """Seconds until the end; 0 or less when there is none."""
        return self._end - time.monotonic()

    def held(self) -> bool:
        """Whether it is not over."""
        return self.left() > 0

    def until(self) -> float:
        """Return the Unix time of the end; it stays the same unless the clock is set or the end is moved."""
        now = time.time() + self.left()
        if abs(now - self._until) > _STEADY:
            self._until = round(now, 3)
        return self._until
