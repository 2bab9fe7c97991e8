"""The part of the waits for batches during which the device was idle, measured without waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import torch

# Shorter waits are measured once in this time, and the measurement holds for those in between. Longer waits are always
# measured.
SHORT_WAIT_NS = 20_000_000
_MAX_PENDING_WAITS = 64  # and so at most twice as many events


class ExposedWaits:
    """Timing events around waits. The device completes the first event of a wait when it has done all work queued
    before the wait, and the second when the batch has arrived or later. The time between is its idle time in the wait.
    For the training thread only; only its current stream is measured. `nanoseconds` is None until the first result.
    """

    def __init__(self) -> None:
        self.nanoseconds: float | None = None
        # Devices with memory of this process: an event on another device would create a context there.
        self.used: Collection[int] = ()
        self._pool: list[Any] = []
        self._pending: deque[tuple[Any, Any, int, int]] = deque()
        self._first: Any = None
        self._unmeasured = 0
        self._not_before = 0

    def begin(self) -> None:
        """Begin a wait."""
        self._first = None
        cuda = torch.cuda
        if not self.used or not cuda.is_initialized() or cuda.current_device() not in self.used:
            return
        if cuda.is_current_stream_capturing() or len(self._pending) >= _MAX_PENDING_WAITS:
            return
        self._first = self._record()

    def end(self, now: int, waited: int) -> None:
        """End a wait of `waited` nanoseconds."""
        first, self._first = self._first, None
        if first is None:
            return
        if waited < SHORT_WAIT_NS and now < self._not_before:
            self._unmeasured += waited
            self._pool.append(first)
            return
        holds_for = waited
        if waited < SHORT_WAIT_NS:
            holds_for += self._unmeasured
            self._unmeasured = 0
        self._not_before = now + SHORT_WAIT_NS
        self._pending.append((first, self._record(), waited, holds_for))

    def collect(self) -> None:
        """Read the events that the device has completed. Does nothing during the capture of a graph."""
        if not self._pending or torch.cuda.is_current_stream_capturing():
            return
        while self._pending and self._pending[0][1].query():
            first, second, waited, holds_for = self._pending.popleft()
            idle = first.elapsed_time(second) * 1e6
            self.nanoseconds = (self.nanoseconds or 0.0) + min(1.0, idle / max(waited, 1)) * holds_for
            self._pool += (first, second)

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        return event
