"""How the batches of the training are loaded: totals over its iterators, from the slots of their processes."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from gpugauge.hook.counts import fetches
from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.fetches import BEGUN, COUNT, FETCHED, PRIVATE, QUEUED, SLOT_WORDS, SUMS, Meter, SlotMemory
from gpugauge.hook.counts.live import Words
from gpugauge.hook.counts.phases import TRAINING
from gpugauge.wire import messages as wire

_ENOUGH = 10  # fetches of each worker, before their durations are compared
_BY_TURNS_NS = 120_000_000_000  # for so long the loader of an ended iterator may be in use, too


class _Iterator:
    """An iterator of a loader with so many workers. `slots` are the first words of its processes in `words`."""

    def __init__(
        self, iterator: Any, words: Words, slots: Sequence[int], memory: SlotMemory | None = None, workers: int = 0
    ) -> None:
        self.alive, self.workers = weakref.ref(iterator), workers
        self.words, self.slots, self.memory = words, slots, memory
        self.trains = False
        self.started = 0  # time at which the start of the workers began
        self.epochs = 0
        self.ending = 0  # nanoseconds that the end of the workers took

    def sums(self) -> list[int]:
        """Return the sums over all processes, in the order of SUMS."""
        return [sum(self.words[at + word] for at in self.slots) for word in SUMS]

    def starting(self) -> int:
        """Return the nanoseconds from the start of the workers to the first fetch, and those of their end."""
        begun = [self.words[at + BEGUN] for at in self.slots if self.words[at + BEGUN]]
        return max(0, min(begun) - self.started) + self.ending if begun and self.started else 0

    def slowest(self) -> float | None:
        """Return the speed of the slowest worker as a share of the median of the others, None before it is known."""
        words = self.words
        if len(self.slots) < 2 or any(words[at + COUNT] < _ENOUGH for at in self.slots):
            return None
        busy = [word for word in SUMS if word not in (FETCHED, COUNT, QUEUED)]
        means = sorted(sum(words[at + word] for word in busy) / words[at + COUNT] for at in self.slots)
        return min(1.0, statistics.median(means[:-1]) / means[-1]) if means[-1] else None


class Loads:
    """The iterators of loaders in this process. Those that train are reported."""

    def __init__(self) -> None:
        self.inherited: SlotMemory | None = None  # in a forked child: of its parent
        self._memory: SlotMemory | None = None
        self.clear()

    def clear(self) -> None:
        """Start from zero: at the start, and in a forked child."""
        self.inherited, self._memory = self._memory or self.inherited, None
        self._iterators: list[_Iterator] = []
        self._ended = [0] * len(SUMS)
        self._ended_at: dict[int, int] = {}  # by number of workers, the end of the last iterator that trained
        self._epochs = self._starts = self._start_ns = self._starting = 0
        self._own = Meter([0] * SLOT_WORDS)
        self._cpu = time.process_time_ns()
        self._queued = fetches.queued_nanoseconds() or 0
        self._folding = threading.Lock()

    def open(self, now: int) -> None:
        """Create the memory for loader workers, which start at `now`. Without it they are not measured."""
        self._starting = now
        if self._memory is None:
            with contextlib.suppress(AttributeError, OSError):
                self._memory = SlotMemory()

    def begin_epoch(self, iterator: Any, pids: Sequence[int]) -> None:
        """Count an epoch of an iterator with loader workers, and add it with the first one."""
        known = self._find(iterator)
        if known is None and self._memory is not None:
            self._fold()
            known = _Iterator(iterator, self._memory.words, self._memory.take(pids), self._memory, len(pids))
            known.started = self._starting
            self._iterators.append(known)
        if known is not None:
            known.epochs += 1

    def train(self, iterator: Any) -> None:
        """Report an iterator: its batches are for the training."""
        self._fold()
        known = self._find(iterator)
        meter = getattr(getattr(iterator, "_dataset_fetcher", None), "gpugauge_meter", None)
        if known is None and meter is not None and meter.words is not None:
            if meter.process != os.getpid():  # this is a forked child: the counts so far are those of its parent
                meter.process, meter.words[:] = os.getpid(), [0] * len(meter.words)
            known = _Iterator(iterator, meter.words, (0,))
            known.epochs = 1
            self._iterators.append(known)
        if known is not None:
            known.trains = True

    def end_workers(self, iterator: Any, nanoseconds: int) -> None:
        """Add the time that the end of the workers took."""
        if (known := self._find(iterator)) is not None:
            known.ending += nanoseconds

    def begin_own(self, now: int) -> None:
        """Begin a wait for an iterator that the program declares."""
        try:
            self._own.begin(now)
        except Exception:
            return  # contextlib.suppress() would take longer than the call

    def end_own(self, began: int, phase: int) -> None:
        """End a wait that brought a batch in a phase. That of the first batch of another phase is not known yet."""
        if phase != TRAINING:
            return
        try:
            self._own.end(began, CLOCKS[0]())
            self._own.words[FETCHED] += 1
        except Exception:
            return

    def _find(self, iterator: Any) -> _Iterator | None:
        return next((known for known in self._iterators if known.alive() is iterator), None)

    def _fold(self) -> None:
        """Add the iterators that no longer exist to the totals, and free their slots."""
        with self._folding:
            gone = [known for known in self._iterators if known.alive() is None]
            for known in gone:
                self._iterators.remove(known)
                if known.trains:
                    self._ended_at[known.workers] = time.monotonic_ns()
                    self._ended = _total((self._ended, known.sums()))
                    self._epochs += known.epochs
                    self._starts += bool(known.started)
                    self._start_ns += known.starting()
                if known.memory is not None:
                    known.memory.release(known.slots)

    def message(self, declared: bool) -> wire.Loader | None:
        """Return the totals for a message; None before a batch is loaded, and while several loaders are in use, also by
        turns: a number of workers would not be that of one of them. `declared` allows a loader that is not torch's.
        """
        self._fold()
        trained = [known for known in self._iterators if known.trains and any(known.sums())]
        sums = _total((self._ended, *(known.sums() for known in trained)))
        if not sums[0] and declared:
            sums = [self._own.words[word] for word in SUMS]
        late = time.monotonic_ns() - _BY_TURNS_NS
        numbers = {known.workers for known in trained} | {count for count, end in self._ended_at.items() if end > late}
        if not sums[0] or len(trained) > 1 or len(numbers) > 1:
            return None
        batches, measured, *nanoseconds = sums
        cpu, threads, queued, storage, blocked = (value / 1e9 for value in nanoseconds)
        last = trained[0] if trained else None
        waited = fetches.queued_nanoseconds()
        return wire.Loader(
            batches=batches,
            measured=measured,
            cpu_seconds=cpu,
            threads_seconds=threads,
            queued_seconds=None if waited is None else queued,
            storage_seconds=storage,
            blocked_seconds=blocked,
            epochs=self._epochs + sum(known.epochs for known in trained),
            starts=self._starts + sum(bool(known.started) for known in trained),
            start_seconds=(self._start_ns + sum(known.starting() for known in trained)) / 1e9,
            slowest=last.slowest() if last else None,
            worker_bytes=max((last.words[at + PRIVATE] for at in last.slots), default=0) or None if last else None,
            process_cpu_seconds=(time.process_time_ns() - self._cpu) / 1e9,
            thread_queued_seconds=None if waited is None else max(0, waited - self._queued) / 1e9,
        )


def _total(sums: Sequence[Sequence[int]]) -> list[int]:
    return [sum(each[place] for each in sums) for place in range(len(SUMS))]


def worker_meter(inherited: SlotMemory | None, parent: int | None) -> Meter | None:
    """Return the meter of this loader worker, None if its parent has no memory or no slot for it yet."""
    memory = inherited
    if memory is None and parent is not None:
        try:
            memory = SlotMemory.of_process(parent)
        except OSError:
            return None
    at = memory.slot_of(os.getpid()) if memory is not None else None
    return Meter(memory.words, at, whole=True) if memory is not None and at is not None else None
