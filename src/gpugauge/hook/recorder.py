"""Counts steps and batches: two appends in the hot path, the arithmetic once a second."""

from __future__ import annotations

import time
from collections import deque

from gpugauge import wire


class Tally:
    """Events that came one after another: their number, the sum of their durations, and the durations by size."""

    def __init__(self) -> None:
        self.count = 0
        self.nanoseconds = 0
        self.last: float | None = None
        self.log2 = [0] * wire.LOG2_BUCKETS

    def add(self, nanoseconds: int) -> None:
        """Count one duration; the event itself is counted by the owner."""
        self.nanoseconds += nanoseconds
        self.log2[wire.log2_bucket(nanoseconds)] += 1

    def progress(self) -> wire.Progress:
        """Return what is counted so far as a message carries it."""
        return wire.Progress(self.count, self.nanoseconds / 1e9, self.last, tuple(self.log2))


class Recorder:
    """`steps` takes (identity of the optimizer, end), `batches` takes (start of the wait, end), in perf_counter_ns.

    Appending to a deque is atomic, so the hot path needs no lock; `drain` must not run twice at once.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[int, int]] = deque()
        self.batches: deque[tuple[int, int]] = deque()
        self.clear()

    def clear(self) -> None:
        """Forget everything: a forked child starts from zero."""
        self.steps.clear()
        self.batches.clear()
        self.step_tally = Tally()
        self.batch_tally = Tally()
        self._round: set[int] = set()
        self._round_end = 0

    def drain(self) -> None:
        """Take what came since the last call into the tallies."""
        ahead = time.time() - time.perf_counter_ns() / 1e9
        # popleft, and not a copy: another thread may append meanwhile.
        for _ in range(len(self.steps)):
            self._step(*self.steps.popleft(), ahead)
        end = 0
        for _ in range(len(self.batches)):
            start, end = self.batches.popleft()
            self.batch_tally.count += 1
            self.batch_tally.add(end - start)
        if end:
            self.batch_tally.last = ahead + end / 1e9

    def _step(self, optimizer: int, end: int, ahead: float) -> None:
        """Count a round when an optimizer steps again, not each of them.

        A training with several optimizers, a wrapper that reports a step twice, or one optimizer for each parameter
        then counts like the one that steps most often, and a later training in the same process goes on from there.
        """
        tally = self.step_tally
        if self._round and optimizer not in self._round:
            self._round.add(optimizer)
            return
        if self._round:
            tally.add(end - self._round_end)
        tally.count += 1
        tally.last = ahead + end / 1e9
        self._round = {optimizer}
        self._round_end = end
