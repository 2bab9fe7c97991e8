"""Counts steps and batches: two appends in the hot path, the arithmetic once a second."""

from __future__ import annotations

import time
from collections import deque

from gpugauge.wire import messages as wire

OPTIMIZER, BATCHES, TICK, DEEPSPEED = wire.STEP_SOURCES


class Tally:
    """Events that came one after another: their number, the sum of their durations, and the durations by size."""

    def __init__(self) -> None:
        self.count = 0
        self.durations = 0
        self.nanoseconds = 0
        self.last: float | None = None
        self.log2 = [0] * wire.LOG2_BUCKETS

    def add(self, nanoseconds: int) -> None:
        """Count one duration; the event itself is counted by the owner."""
        self.durations += 1
        self.nanoseconds += nanoseconds
        self.log2[wire.log2_bucket(nanoseconds)] += 1

    def progress(self) -> wire.Progress:
        """Return what is counted so far as a message carries it."""
        return wire.Progress(self.count, self.nanoseconds / 1e9, self.last, tuple(self.log2))


class Recorder:
    """`steps` takes (identity of the optimizer, end), `batches` takes (start of the wait, end, whether to train on it),
    `ticks` takes ends; all in perf_counter_ns.

    Appending to a deque is atomic, so the hot path needs no lock; `drain` must not run twice at once. What steps are
    counted by is settled with the first that comes; what is counted already stays counted when it changes.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[int, int]] = deque()
        self.batches: deque[tuple[int, int, bool]] = deque()
        self.ticks: deque[int] = deque()
        self.source: str | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything but the source: a forked child starts from zero."""
        self.steps.clear()
        self.batches.clear()
        self.ticks.clear()
        self.step_tally = Tally()
        self.batch_tally = Tally()
        self.training_batches = 0
        self._round: set[int] = set()
        self._step_end: int | None = None

    def fall_back(self) -> None:
        """Count batches to train on as steps, those of the past included: optimizers step without saying so. To be
        called by who drains.
        """
        if self.source is None:
            self.source = BATCHES
            self.step_tally.count = self.training_batches
            self.step_tally.last = self.batch_tally.last

    def counts(self) -> tuple[int, int]:
        """Return steps and batches so far, cheaply: with several optimizers steps of the last second are a guess."""
        waiting = self.steps if self.source in (None, OPTIMIZER) else self.ticks
        steps = self.step_tally.count + len(waiting) // max(1, len(self._round))
        return steps, self.batch_tally.count + len(self.batches)

    def drain(self) -> None:
        """Take what came since the last call into the tallies."""
        ahead = time.time() - time.perf_counter_ns() / 1e9
        # popleft, and not a copy: another thread may append meanwhile.
        if self.ticks and self.source not in (TICK, DEEPSPEED):
            self._turn_to_ticks(ahead)
        for _ in range(len(self.ticks)):
            self._count(self.ticks.popleft(), ahead)
        for _ in range(len(self.steps)):
            self._step(*self.steps.popleft(), ahead)
        for _ in range(len(self.batches)):
            self._batch(*self.batches.popleft(), ahead)

    def _turn_to_ticks(self, ahead: float) -> None:
        """Count steps by ticks from the first of them on; that one tells about a step which was counted otherwise."""
        while self.steps and self.steps[0][1] <= self.ticks[0]:
            self._step(*self.steps.popleft(), ahead)
        if self.source is not None:
            self.ticks.popleft()
        self.source = TICK

    def _step(self, optimizer: int, end: int, ahead: float) -> None:
        """Count a round when an optimizer steps again, not each of them.

        A training with several optimizers, a wrapper that reports a step twice, or one optimizer for each parameter
        then counts like the one that steps most often, and a later training in the same process goes on from there.
        """
        if self.source is None:
            self.source = OPTIMIZER
        if self.source != OPTIMIZER:
            return
        if self._round and optimizer not in self._round:
            self._round.add(optimizer)
            return
        self._round = {optimizer}
        self._count(end, ahead)

    def _batch(self, start: int, end: int, training: bool, ahead: float) -> None:
        self.batch_tally.count += 1
        self.batch_tally.add(end - start)
        self.batch_tally.last = ahead + end / 1e9
        if training:
            self.training_batches += 1
            if self.source == BATCHES:
                self._count(end, ahead)

    def _count(self, end: int, ahead: float) -> None:
        tally = self.step_tally
        if self._step_end is not None:
            tally.add(end - self._step_end)
        tally.count += 1
        tally.last = ahead + end / 1e9
        self._step_end = end
