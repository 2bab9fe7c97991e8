"""The present worker, and former ones that no signal ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpugauge.driver.client import Worker
from gpugauge.logline import fields

log = logging.getLogger("gpugauge.driver")

_MAX_UNREAPED = 2


class Workers:
    """Starts and ends one worker after the other."""

    def __init__(self, spawn: Callable[[], Worker]) -> None:
        self._spawn = spawn
        self._unreaped: list[Worker] = []
        self._ending: Worker | None = None
        self.current: Worker | None = None
        self.starts = 0

    @property
    def stuck(self) -> bool:
        """Whether so many do not end that one more would only be lost, too."""
        return len(self._unreaped) >= _MAX_UNREAPED

    def start(self) -> Worker:
        """Start the next one; raises OSError."""
        self.current = self._spawn()
        self.starts += 1
        return self.current

    def end(self, sentence: str = "", *, polite: bool = True, patience: float = 0.3) -> None:
        """End the present one, see Worker.end(); a `sentence` is logged with how it ended."""
        worker = self._ending = self.current
        self.current = None
        assert worker is not None
        if not worker.end(polite=polite, patience=patience):
            self._unreaped.append(worker)
        self._ending = None
        if sentence:
            log.warning(sentence, extra=fields(worker=worker.ending(), pid=worker.pid))

    def hurry(self) -> None:
        """Make the thread that waits for a worker go on at once: for its answer, or for its end. For other threads."""
        current, ending = self.current, self._ending
        if current:
            current.interrupt()
        if ending:
            ending.kill()

    def unkillable(self) -> int:
        """Return how many former ones still have not ended."""
        self._unreaped = [w for w in self._unreaped if not w.reaped()]
        return len(self._unreaped)
