"""Reads of processes that end in time. Some files in /proc need a lock that a process can hold for as long as it likes.
Each is read in a thread, which is left behind if it hangs; then its user is not read for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gpugauge.base.guard import Background

READ_SECONDS = 1.0
_REFUSED_SECONDS = 60.0  # after the read
# Left behind of a cgroup: one person may have many users. And in all: the tasks of the unit are limited (TasksMax=).
_MAX_BY_CGROUP, _MAX_IN_ALL = 4, 16


class ProcessOwner(NamedTuple):
    """Whose process is read."""

    uid: int
    cgroup: str


class InTime:
    """Makes reads that may hang. Thread-safe."""

    def __init__(self, seconds: float = READ_SECONDS, refused_seconds: float = _REFUSED_SECONDS) -> None:
        self._seconds, self._refused_seconds = seconds, refused_seconds
        self._lock = threading.Lock()
        self._idle: list[Background[bytes]] = []
        # Reads that hang, or did not long ago: whose they are, and the monotonic time until which he is refused.
        self._left: dict[Background[bytes], tuple[ProcessOwner, float]] = {}
        self._spent = threading.local()

    def cpu_seconds(self) -> float:
        """Return the CPU time of all reads that the calling thread has asked for."""
        seconds: float = getattr(self._spent, "seconds", 0.0)
        return seconds

    def read(self, work: Callable[[], bytes], owner: Callable[[], ProcessOwner]) -> bytes:
        """Return the result of `work`. Raises what it raises, and TimeoutError if it hangs or is refused."""
        if self._left:
            self._check(owner())
        with self._lock:
            reader = self._idle.pop() if self._idle else Background[bytes]("reads of processes")
        try:
            reader.start(work, self._seconds)
        except RuntimeError:
            raise TimeoutError(0, "there is no thread to read it in") from None
        if reader.running is not None:
            reader.leave()
            whose = owner()
            with self._lock:
                self._left[reader] = whose, time.monotonic() + self._refused_seconds
            raise TimeoutError(0, "reading it hangs inside the kernel")
        self._spent.seconds = self.cpu_seconds() + reader.cpu_seconds
        try:
            return reader.take() or b""
        finally:
            self._idle.append(reader)

    def _check(self, owner: ProcessOwner) -> None:
        """Raise TimeoutError if no process of this owner is read now."""
        with self._lock:
            now, every = time.monotonic(), self._left.items()
            self._left = {reader: left for reader, left in every if left[1] > now or reader.running is not None}
            hanging = [left.cgroup for reader, (left, _) in self._left.items() if reader.running is not None]
            refused = any(left.uid == owner.uid for left, _ in self._left.values())
        if refused or hanging.count(owner.cgroup) >= _MAX_BY_CGROUP:
            raise TimeoutError(0, "reading another process of its user hangs")
        if len(hanging) >= _MAX_IN_ALL:
            raise TimeoutError(0, "reading too many other processes hangs")
