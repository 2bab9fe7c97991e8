"""Reads of processes that end in time.

Some files in /proc need a lock that a process can hold for as long as it likes, for example while it maps a file of a
FUSE file system that does not answer. Their reads end with that process only. Each is made in a thread, which is left
behind if it hangs. Then the user is not read for a while, so that no user holds up the reads of others.
"""

from __future__ import annotations

import _thread
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

READ_SECONDS = 1.0
_REFUSED_SECONDS = 60.0  # after the read
# Left behind of a cgroup: one person may have many users. And in all: the tasks of the unit are limited (TasksMax=).
_MAX_BY_CGROUP, _MAX_IN_ALL = 4, 16


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Whose process is read."""

    uid: int
    cgroup: str


@dataclass(eq=False, slots=True)
class _Reader:
    """A thread that reads. It ends after a read that it was left behind with."""

    todo: queue.SimpleQueue[Callable[[], bytes]] = field(default_factory=queue.SimpleQueue)
    done: queue.SimpleQueue[bytes | BaseException] = field(default_factory=queue.SimpleQueue)
    cpu: float = 0.0  # seconds of its last read


class InTime:
    """Makes reads that may hang. Thread-safe."""

    def __init__(self, seconds: float = READ_SECONDS, refused_seconds: float = _REFUSED_SECONDS) -> None:
        self._seconds, self._refused_seconds = seconds, refused_seconds
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []
        self._left: dict[_Reader, ProcessOwner] = {}
        self._refused: dict[int, float] = {}  # by uid, monotonic time of the end
        self._spent = threading.local()

    def cpu_seconds(self) -> float:
        """Return the CPU time of all reads that the calling thread has asked for."""
        seconds: float = getattr(self._spent, "seconds", 0.0)
        return seconds

    @property
    def left_behind(self) -> int:
        """The number of reads that hang."""
        return len(self._left)

    def read(self, work: Callable[[], bytes], owner: Callable[[], ProcessOwner]) -> bytes:
        """Return the result of `work`; `owner` is asked if any read hangs. Raises TimeoutError if it takes too long or
        is refused, and what the work raises.
        """
        if self._refused or self._left:
            self._check(owner())
        reader = self._take()
        reader.todo.put(work)
        try:
            found = reader.done.get(timeout=self._seconds)
        except queue.Empty:
            found = self._leave(reader, owner())
        else:
            self._spent.seconds = self.cpu_seconds() + reader.cpu
            with self._lock:
                self._idle.append(reader)
        if isinstance(found, BaseException):
            raise found
        return found

    def _check(self, owner: ProcessOwner) -> None:
        """Raise TimeoutError if no process of this owner is read now."""
        with self._lock:
            now = time.monotonic()
            self._refused = {uid: until for uid, until in self._refused.items() if until > now}
            left = Counter(found.cgroup for found in self._left.values())
            hanging = any(found.uid == owner.uid for found in self._left.values())
            if hanging or owner.uid in self._refused or left[owner.cgroup] >= _MAX_BY_CGROUP:
                raise TimeoutError(0, "reading another process of its user hangs")
            if len(self._left) >= _MAX_IN_ALL:
                raise TimeoutError(0, "reading too many other processes hangs")

    def _take(self) -> _Reader:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        reader = _Reader()
        try:
            _thread.start_new_thread(self._run, (reader,))
        except RuntimeError:
            raise TimeoutError(0, "there is no thread to read it in") from None
        return reader

    def _leave(self, reader: _Reader, owner: ProcessOwner) -> bytes | BaseException:
        with self._lock:
            if not reader.done.empty():
                self._idle.append(reader)
                return reader.done.get()
            self._left[reader] = owner
            self._refused[owner.uid] = time.monotonic() + self._refused_seconds
        return TimeoutError(0, "reading it hangs inside the kernel")

    def _run(self, reader: _Reader) -> None:
        while True:
            found: bytes | BaseException
            work = reader.todo.get()
            begin = time.thread_time()
            try:
                found = work()
            except BaseException as error:  # noqa: BLE001  (raised by read())
                found = error
            reader.cpu = time.thread_time() - begin
            with self._lock:
                if self._left.pop(reader, None) is not None:
                    return
                reader.done.put(found)
