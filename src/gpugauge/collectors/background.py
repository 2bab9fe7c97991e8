"""Work that can block inside the kernel, done where nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
# Seconds that a piece of work is waited for when it begins: most is done by then.
PATIENCE = 0.2


class Background(Generic[T]):
    """Runs one piece of work at a time in a thread. Reading a process that hangs may never end: its thread is left."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._result: T | None = None
        self._error: Exception | None = None

    @property
    def running(self) -> float | None:
        """Seconds for which the work has been going on, None if there is none or its result waits to be taken."""
        if self._thread is None or not self._thread.is_alive():
            return None
        return time.monotonic() - self._began

    def start(self, work: Callable[[], T]) -> None:
        """Begin, and wait a moment for the end. Only while nothing is running."""
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        self._thread.start()
        self._thread.join(PATIENCE)

    def take(self) -> T | None:
        """Return the result once, None if there is none (yet). Raises what the work raised."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        (result, self._result), (error, self._error) = (self._result, None), (self._error, None)
        if error is not None:
            raise error
        return result

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except Exception as error:  # noqa: BLE001 - raised again by take()
            self._error = error
