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


class Background(Generic[T]):
    """Does one piece of work at a time in a thread, which is kept; while it hangs, no other work is started."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: Loop | None = None
        self._todo: queue.SimpleQueue[tuple[Callable[[], T], threading.Lock] | None] = queue.SimpleQueue()
        self._ended: bool | None = None  # None if there is no result to come
        self._began = 0.0
        self._result: T | None = None
        self._error: BaseException | None = None
        self.cpu_seconds = 0.0  # of the last work

    @property
    def running(self) -> float | None:
        """Seconds since the start of the work, None if none is running."""
        return time.monotonic() - self._began if self._ended is False else None

    def start(self, work: Callable[[], T], wait_seconds: float | None = None) -> None:
        """Start `work` and wait, up to START_WAIT_SECONDS, for its end. Must not be called while work is running."""
        if self._thread is None:
            thread = Loop(self._name, self._turn)
            thread.begin()
            self._thread = thread
        self._result = self._error = None
        self._began, self._ended = time.monotonic(), False
        ending = threading.Lock()
        ending.acquire()
        self._todo.put((work, ending))
        ending.acquire(timeout=START_WAIT_SECONDS if wait_seconds is None else wait_seconds)

    def take(self) -> T | None:
        """Return the result once, None if there is none (yet). Raises the exception of the work."""
        if not self._ended:
            return None
        self._ended = None
        (result, self._result), (error, self._error) = (self._result, None), (self._error, None)
        if error is not None:
            raise error
        return result

    def leave(self) -> None:
        """End the thread, after its work if that is running. The next work has another one."""
        assert self._thread
        self._thread.stopping.set()
        self._thread = None
        self._todo.put(None)

    def call(self, seconds: float, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception. Raises TimeoutError, too, while older work hangs."""
        if self.running is None:
            self.start(work, seconds)
            self.leave()
            if self._ended:
                return self.take()  # type: ignore[return-value]  # it is done
        raise TimeoutError

    def _turn(self) -> None:
        todo = self._todo.get()
        if todo is None:
            return
        work, ending = todo
        begin = time.thread_time()
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - raised again by take()
            self._error = error
        finally:
            self.cpu_seconds = time.thread_time() - begin
            self._ended = True
            ending.release()
