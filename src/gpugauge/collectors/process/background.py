"""Work that can block inside the kernel, done where nobody waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
# Seconds that a piece of work is waited for when it begins: most is done by then.
PATIENCE = 0.2


class Background(Generic[T]):
    """Runs one piece of work at a time in a thread of its own. Reading a process that hangs may never end: then no
    other work begins. The thread stays: to start one waits for ever when there is no memory for its first step.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._todo: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()
        self._done = threading.Event()
        self._busy = False
        self._began = 0.0
        self._result: T | None = None
        self._error: Exception | None = None

    @property
    def running(self) -> float | None:
        """Seconds for which the work has been going on, None if there is none or its result waits to be taken."""
        return time.monotonic() - self._began if self._busy and not self._done.is_set() else None

    def start(self, work: Callable[[], T]) -> None:
        """Begin, and wait a moment for the end. Only while nothing is running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._began = time.monotonic()
        self._done.clear()
        self._busy = True
        self._todo.put(work)
        self._done.wait(PATIENCE)

    def take(self) -> T | None:
        """Return the result once, None if there is none (yet). Raises what the work raised."""
        if not self._busy or not self._done.is_set():
            return None
        self._busy = False
        (result, self._result), (error, self._error) = (self._result, None), (self._error, None)
        if error is not None:
            raise error
        return result

    def _run(self) -> None:
        while True:
            work = self._todo.get()
            try:
                self._result = work()
            except Exception as error:  # noqa: BLE001 - raised again by take()
                self._error = error
            self._done.set()
