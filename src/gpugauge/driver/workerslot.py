"""The current worker process, and former ones that no signal ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpugauge.base.logline import fields
from gpugauge.driver.client import GRACE_SECONDS, Worker

log = logging.getLogger("gpugauge.driver")

_MAX_UNREAPED = 2


class WorkerSlot:
    """Starts and ends worker processes, one at a time. `starts` counts them."""

    def __init__(self, spawn: Callable[[], Worker]) -> None:
        self._spawn = spawn
        self._unreaped: list[Worker] = []
        self._ending: Worker | None = None
        self.current: Worker | None = None
        self.starts = 0

    @property
    def stuck(self) -> bool:
        """Whether no further worker may be started: too many former ones hang inside the kernel."""
        return len(self._unreaped) >= _MAX_UNREAPED

    def start(self) -> Worker:
        """Start and return the next worker. Raises OSError."""
        self.current = self._spawn()
        self.starts += 1
        return self.current

    def end(self, sentence: str = "", *, graceful: bool = True, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the current worker, see Worker.end(). A `sentence` is logged together with the exit of the process."""
        worker = self._ending = self.current
        self.current = None
        assert worker is not None
        if not worker.end(graceful=graceful, grace_seconds=grace_seconds):
            self._unreaped.append(worker)
        self._ending = None
        if sentence:
            log.warning(sentence, extra=fields(worker=worker.ending(), pid=worker.pid))

    def cancel_wait(self) -> None:
        """Make a thread that waits for a reply or for the end of a worker continue at once. For other threads."""
        current, ending = self.current, self._ending
        if current:
            current.interrupt()
        if ending:
            ending.kill()

    def unkillable(self) -> int:
        """Return the number of former workers that have not ended."""
        self._unreaped = [w for w in self._unreaped if not w.reaped()]
        return len(self._unreaped)
