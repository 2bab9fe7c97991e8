"""Work that can block inside the kernel, done in a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpugauge.base.guard import Loop

T = TypeVar("T")
# Time for which start() waits for the result: most work ends within it.
START_WAIT_SECONDS = 0.2


class TimeoutExceeded(Exception):  # noqa: N818  (the caller names the work)
    """The work did not end in time."""


class Background(Generic[T]):
    """Runs one piece of work at a time in its own thread. Reading a process that hangs may never return; no other work
    is started then. The thread is kept: starting a thread blocks forever if there is no memory for its first step.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: Loop | None = None
        self._todo: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()
        self._done = threading.Event()
        self._busy = False
        self._began = 0.0
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def running(self) -> float | None:
        """Seconds since the start of the work, None if none is running."""
        return time.monotonic() - self._began if self._busy and not self._done.is_set() else None

    def start(self, work: Callable[[], T], wait_seconds: float | None = None) -> None:
        """Start `work` and wait, up to START_WAIT_SECONDS, for its end. Must not be called while work is running."""
        if self._thread is None:
            self._thread = Loop(self._name, self._turn)
            self._thread.start()
        self._began = time.monotonic()
        self._done.clear()
        self._result = self._error = None
        self._busy = True
        self._todo.put(work)
        self._done.wait(START_WAIT_SECONDS if wait_seconds is None else wait_seconds)

    def take(self) -> T | None:
        """Return the result once, None if there is none (yet). Raises the exception of the work."""
        if not self._busy or not self._done.is_set():
            return None
        self._busy = False
        (result, self._result), (error, self._error) = (self._result, None), (self._error, None)
        if error is not None:
            raise error
        return result

    def call(self, seconds: float, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception. Raises TimeoutExceeded, too, while older work hangs.
        The thread ends with the work.
        """

        def only() -> T:
            assert self._thread
            self._thread.stopping.set()
            return work()

        if self.running is None:
            self._thread = None
            self.start(only, seconds)
            if self._done.is_set():
                return self.take()  # type: ignore[return-value]  # it is done
        raise TimeoutExceeded

    def _turn(self) -> None:
        work = self._todo.get()
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - raised again by take()
            self._error = error
        finally:
            self._done.set()
