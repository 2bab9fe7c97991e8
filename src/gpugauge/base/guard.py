"""Threads that an error which nobody expects does not end: it is logged once, shown in the health, and they go on. Work
that can block inside the kernel has a thread of its own.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

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
