"""Closing what strangers have handed over, which can block: a TCP socket with SO_LINGER for as long as the peer likes,
a file of FUSE for ever, also to SIGKILL; and so a connection with one in its queue.
"""

from __future__ import annotations

import _thread
import posix
import time

from gpugauge.sessions.receiver.peer import CgroupUser

MAX_THREADS = 16
_STACK_BYTES = 128 * 1024


class Closer:
    """Closes in the background, with a thread for each owner: a descriptor that blocks stops only its own."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._waiting: dict[CgroupUser, list[int]] = {}  # none is empty
        self._running: dict[CgroupUser, float] = {}  # by owner, the monotonic time at which its current close began
        self.total = 0  # descriptors not yet closed
        self.error: Exception | None = None  # of a thread that it has ended
        _thread.stack_size(_STACK_BYTES)

    def close(self, owner: CgroupUser, descriptors: list[int]) -> None:
        """Close descriptors soon. Never blocks."""
        with self._lock:
            self._waiting.setdefault(owner, []).extend(descriptors)
            self.total += len(descriptors)
            start = self._claim(owner)
        if start:
            self._start(owner)

    def retry(self) -> None:
        """Start the threads that could not be started before. Raises the error that has ended one."""
        if self.error:
            raise self.error
        with self._lock:
            owners = [owner for owner, queue in self._waiting.items() if queue and self._claim(owner)]
        for owner in owners:
            self._start(owner)

    def waiting(self, owner: CgroupUser) -> int:
        """Return the number of an owner's descriptors whose close has not begun."""
        return len(self._waiting.get(owner, ()))

    def blocked(self, seconds: float) -> list[CgroupUser]:
        """Return the owners whose current close takes longer than `seconds`."""
        limit = time.monotonic() - seconds
        with self._lock:
            return [owner for owner, since in self._running.items() if since < limit]

    def _claim(self, owner: CgroupUser) -> bool:
        """Return whether a thread for `owner` is to be started. The caller holds the lock."""
        free = owner not in self._running and len(self._running) < MAX_THREADS
        if free:
            self._running[owner] = time.monotonic()
        return free

    def _start(self, owner: CgroupUser) -> None:
        try:
            _thread.start_new_thread(self._guarded, (owner,))
        except RuntimeError:  # out of threads: retry() tries again
            with self._lock:
                del self._running[owner]

    def _guarded(self, owner: CgroupUser) -> None:
        try:
            self._run(owner)
        except Exception as error:  # noqa: BLE001 - the receiver ends by it, and is replaced
            self.error = error

    def _run(self, owner: CgroupUser) -> None:
        while True:
            with self._lock:
                queue = self._waiting.get(owner)
                if not queue:
                    self._waiting.pop(owner, None)
                    del self._running[owner]
                    # A new thread for each of many owners would cost more than their closes.
                    free = (owner for owner in self._waiting if owner not in self._running)
                    following = next(free, None)
                    if following is None:
                        return
                    owner, queue = following, self._waiting[following]
                descriptor = queue.pop()
                self._running[owner] = time.monotonic()
            try:
                posix.close(descriptor)
            except OSError:
                pass
            with self._lock:
                self.total -= 1
