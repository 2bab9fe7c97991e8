"""How much of the waits for batches the device waited too: measured on the device, without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import torch

# Short waits are measured this often at most, and speak for those in between; a longer one is always measured.
EVERY = 20_000_000  # nanoseconds
_MOST_PENDING = 64
_POOL = 2 * _MOST_PENDING


class ExposedWaits:
    """Two timing events around a wait. The device passes the first when it has done all work given to it before the
    wait, and the second when the batch is there or later: the time between is what it stood still in the wait.

    Only the training thread calls, and only its current stream is looked at. `nanoseconds` is None until it is known.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything: a forked child cannot use its parent's events."""
        self.nanoseconds: float | None = None
        self.used: Collection[int] = ()  # devices that the process has memory on: no other gets a context from us
        self._pool: list[Any] = []
        self._pending: deque[tuple[Any, Any, int, int]] = deque()
        self._first: Any = None
        self._unmeasured = 0
        self._not_before = 0

    def begin(self) -> None:
        """Call when the wait begins."""
        self._first = None
        cuda = torch.cuda
        if not self.used or not cuda.is_initialized() or cuda.current_device() not in self.used:
            return
        if cuda.is_current_stream_capturing() or len(self._pending) >= _MOST_PENDING:
            return
        self._first = self._record()

    def end(self, now: int, waited: int) -> None:
        """Call when the batch is there, after `waited` ns."""
        first, self._first = self._first, None
        if first is None:
            return
        if waited < EVERY and now < self._not_before:
            self._unmeasured += waited
            self._pool.append(first)
            return
        speaks_for = waited
        if waited < EVERY:
            speaks_for += self._unmeasured
            self._unmeasured = 0
        self._not_before = now + EVERY
        self._pending.append((first, self._record(), waited, speaks_for))

    def collect(self) -> None:
        """Read what the device has passed meanwhile; never during the capture of a graph."""
        if not self._pending or torch.cuda.is_current_stream_capturing():
            return
        while self._pending and self._pending[0][1].query():
            first, second, waited, speaks_for = self._pending.popleft()
            stood_still = first.elapsed_time(second) * 1e6
            self.nanoseconds = (self.nanoseconds or 0.0) + min(1.0, stood_still / max(waited, 1)) * speaks_for
            if len(self._pool) < _POOL:
                self._pool += (first, second)

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        return event
