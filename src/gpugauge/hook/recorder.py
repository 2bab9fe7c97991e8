"""Counters of steps and batches: one append per step and per batch, the arithmetic once a second."""

from __future__ import annotations

import time
from collections import deque

from gpugauge.wire import messages as wire

OPTIMIZER, BATCHES, TICK, DEEPSPEED = wire.STEP_SOURCES


class Tally:
    """A sequence of events: their number, the sum of their durations, and a histogram of the durations."""

    def __init__(self) -> None:
        self.count = 0
        self.durations = 0
        self.nanoseconds = 0
        self.last: float | None = None
        self.log2 = [0] * wire.LOG2_BUCKETS

    def add(self, nanoseconds: int) -> None:
        """Add one duration. The caller counts the event itself."""
        self.durations += 1
        self.nanoseconds += nanoseconds
        self.log2[wire.log2_bucket(nanoseconds)] += 1

    def progress(self) -> wire.Progress:
        """Return the counts so far for a message."""
        return wire.Progress(self.count, self.nanoseconds / 1e9, self.last, tuple(self.log2))


class Recorder:
    """`steps` holds (identity of the optimizer, end), `batches` holds (start of the wait, end, whether it is for
    training), `ticks` holds ends. Times are perf_counter_ns.

    Appending to a deque is atomic, so it needs no lock; only one thread at a time may call drain(). The first event
    decides the `source` of the step count. Counted steps stay counted when the source changes.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[int, int]] = deque()
        self.batches: deque[tuple[int, int, bool]] = deque()
        self.ticks: deque[int] = deque()
        self.source: str | None = None
        self.clear()

    def clear(self) -> None:
        """Start from zero, with the source kept: in a forked child."""
        self.steps.clear()
        self.batches.clear()
        self.ticks.clear()
        self.step_tally = Tally()
        self.batch_tally = Tally()
        self.training_batches = 0
        self._round: set[int] = set()
        self._step_end: int | None = None

    def count_batches_as_steps(self) -> None:
        """Count training batches as steps, past ones included, because optimizers step without a report. Call it only
        on the thread that calls drain().
        """
        if self.source is None:
            self.source = BATCHES
            self.step_tally.count = self.training_batches
            self.step_tally.last = self.batch_tally.last

    def counts(self) -> tuple[int, int]:
        """Return the steps and batches so far. With several optimizers the steps since drain() are an estimate."""
        waiting = self.steps if self.source in (None, OPTIMIZER) else self.ticks
        steps = self.step_tally.count + len(waiting) // max(1, len(self._round))
        return steps, self.batch_tally.count + len(self.batches)

    def drain(self) -> None:
        """Count the events since the last call."""
        unix_offset = time.time() - time.perf_counter_ns() / 1e9
        # popleft instead of a copy: another thread can append during the loop.
        if self.ticks and self.source not in (TICK, DEEPSPEED):
            self._switch_to_ticks(unix_offset)
        for _ in range(len(self.ticks)):
            self._count(self.ticks.popleft(), unix_offset)
        for _ in range(len(self.steps)):
            self._step(*self.steps.popleft(), unix_offset)
        for _ in range(len(self.batches)):
            self._batch(*self.batches.popleft(), unix_offset)

    def _switch_to_ticks(self, unix_offset: float) -> None:
        """Count steps by ticks from now on. The first tick reports a step that another source has counted."""
        while self.steps and self.steps[0][1] <= self.ticks[0]:
            self._step(*self.steps.popleft(), unix_offset)
        if self.source is not None:
            self.ticks.popleft()
        self.source = TICK

    def _step(self, optimizer: int, end: int, unix_offset: float) -> None:
        """Count one step per round. A round ends when one of its optimizers steps again.

        Several optimizers, a wrapper that reports a step twice, or one optimizer per parameter then count like the
        optimizer that steps most often. A later training in the same process adds to the same count.
        """
        if self.source is None:
            self.source = OPTIMIZER
        if self.source != OPTIMIZER:
            return
        if self._round and optimizer not in self._round:
            self._round.add(optimizer)
            return
        self._round = {optimizer}
        self._count(end, unix_offset)

    def _batch(self, start: int, end: int, training: bool, unix_offset: float) -> None:
        self.batch_tally.count += 1
        self.batch_tally.add(end - start)
        self.batch_tally.last = unix_offset + end / 1e9
        if training:
            self.training_batches += 1
            if self.source == BATCHES:
                self._count(end, unix_offset)

    def _count(self, end: int, unix_offset: float) -> None:
        tally = self.step_tally
        if self._step_end is not None:
            tally.add(end - self._step_end)
        tally.count += 1
        tally.last = unix_offset + end / 1e9
        self._step_end = end
