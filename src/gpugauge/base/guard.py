"""Threads that an error which nobody expects does not end: it is logged once, shown in the health, and they go on."""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

from gpugauge.base.logline import fields

log = logging.getLogger("gpugauge")

SETTLED_SECONDS = 5.0  # for so long after its last error a thread is failing, so that nothing misses it
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 0.1, 1.0
_failed: dict[str, Guard] = {}


def failed() -> list[Guard]:
    """Return the guards of threads that have failed since their start."""
    return list(_failed.values())


class Guard:
    """Runs the work of a thread. `failures` counts the errors, `last_success` is a Unix time, 0 if there was none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures, self.last_success = 0, 0.0
        self._error = ""
        self._failed_at = self._succeeded_at = -math.inf

    @property
    def failing(self) -> str:
        """The last error, "" once a run has succeeded since, and some seconds have passed."""
        recent = time.monotonic() - self._failed_at < SETTLED_SECONDS
        return self._error if recent or self._failed_at > self._succeeded_at else ""

    def run(self, *works: Callable[[], object]) -> bool:
        """Do one after the other; return whether all succeeded."""
        try:
            for work in works:
                work()
        except BaseException as error:  # noqa: BLE001  (a panic of a Rust library is no Exception)
            self.record(error)
            return False
        self._succeeded_at, self.last_success = time.monotonic(), time.time()
        if self._error and not self.failing:
            self._error = ""
            log.info("a thread of the daemon works again", extra=fields(thread=self.name, failures=self.failures))
        return True

    def record(self, error: BaseException) -> None:
        """Record an error that the thread itself has handled."""
        now, known = time.monotonic(), self.failing
        self.failures += 1
        if isinstance(error, MemoryError) and now - self._succeeded_at < SETTLED_SECONDS:
            return  # there may be memory in a moment
        self._failed_at = now
        before = _failed.get(self.name, self)
        if before is not self:  # a thread in the place of another one: its counter does not fall
            self.failures += before.failures
        with contextlib.suppress(Exception):  # out of memory
            self._error = f"{type(error).__name__}: {error}"
            _failed[self.name] = self
            if not known:
                log.error("a thread of the daemon failed, it goes on", exc_info=error, extra=fields(thread=self.name))


class Loop(threading.Thread):
    """A thread that calls `turn` and `wait` until `stopping` is set, with delays after errors, and then `finish`."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], object],
        stopping: threading.Event | None = None,
        finish: Callable[[], object] = lambda: None,
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.guard, self.stopping = Guard(name), stopping or threading.Event()
        self._turn, self._finish, self._wait = turn, finish, wait

    def begin(self) -> None:
        """Start without waiting for the first step: if there is no memory for it, start() never returns."""
        _thread.start_new_thread(self.run, ())

    def run(self) -> None:
        """Run in the thread."""
        delay = _FIRST_DELAY_SECONDS
        while not self.stopping.is_set():
            if self.guard.run(self._turn) and self.guard.run(self._wait):
                delay = _FIRST_DELAY_SECONDS
            else:
                self.stopping.wait(delay)
                delay = min(2 * delay, _LAST_DELAY_SECONDS)
        self.guard.run(self._finish)
        _failed.pop(self.name, None)
