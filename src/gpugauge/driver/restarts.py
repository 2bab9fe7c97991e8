"""The time at which the next worker is started: the back-off after failures of a worker and of the driver."""

from __future__ import annotations

# The longest delay after a failed worker, and after a failed attempt to open the driver.
_MAX_WORKER_BACKOFF_SECONDS, _MAX_DRIVER_BACKOFF_SECONDS = 10.0, 60.0
# A worker that has replied for this long ends the back-off.
_STABLE_SECONDS = 30.0


class Restarts:
    """`next_start` is the earliest time of the next start; `count` the number of workers that failed. Times are
    monotonic seconds.
    """

    def __init__(self) -> None:
        self.next_start = 0.0
        self.count = 0
        self._backoff = 0.0
        self._started = 0.0

    def record_start(self, now: float) -> None:
        """Record the start of a worker."""
        self._started = now

    def record_replies(self, now: float) -> None:
        """Record that the worker has replied to a reading that began at `now`."""
        if now - self._started > _STABLE_SECONDS:
            self._backoff = 0.0

    def after_worker_failure(self, now: float) -> None:
        """Start the next worker at once after the first failure, then after twice the delay of the failure before."""
        self.count += 1
        self.next_start = now + self._backoff
        self._backoff = min(_MAX_WORKER_BACKOFF_SECONDS, max(0.5, self._backoff * 2))

    def after_driver_failure(self, now: float) -> None:
        """Open the driver again after a second, then after twice the delay of the failure before."""
        self._backoff = min(_MAX_DRIVER_BACKOFF_SECONDS, max(1.0, self._backoff * 2))
        self.next_start = now + self._backoff

    def start_now(self) -> None:
        """Start the next worker at once; the back-off stays."""
        self.next_start = 0.0

    def reset(self) -> None:
        """Start the next worker at once, without a back-off."""
        self.next_start = self._backoff = 0.0
