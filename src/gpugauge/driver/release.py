"""The release of the driver on request: to reset a GPU, to change MIG, to upgrade the driver."""

from __future__ import annotations

import time

_MAX_CLOCK_DRIFT_SECONDS = 2.0  # a larger difference of the two clocks changes the reported end


class Release:
    """A period in which the driver stays closed; one thread sets it, others read it. It ends by the monotonic clock."""

    def __init__(self) -> None:
        self._end = 0.0
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        """Release the driver for `seconds` from now, whatever was requested before."""
        self._until, self._end = 0.0, time.monotonic() + seconds

    def end(self) -> None:
        """End the release."""
        self._end = 0.0

    def left(self) -> float:
        """Return the seconds until the end; 0 or less without a release."""
        return self._end - time.monotonic()

    def held(self) -> bool:
        """Return whether the driver is to stay closed."""
        return self.left() > 0

    def until(self) -> float:
        """Return the Unix time of the end; it is constant unless the clock is set or the end is moved."""
        now = time.time() + self.left()
        if abs(now - self._until) > _MAX_CLOCK_DRIFT_SECONDS:
            self._until = round(now, 3)
        return self._until
