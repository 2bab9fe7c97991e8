"""How the batches are loaded, measured where they are: in the processes of a loader, or in the thread that trains. Each
process writes into a slot of its own in memory that it shares with the training process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import statistics
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, ClassVar, Tuple

from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.record import Words
from gpugauge.wire import messages as wire

# Words of a slot, each of eight bytes: the pid it belongs to, number of fetches, number of measured ones, and
# nanoseconds of these. CPU is that of the loading thread, THREADS that of the other threads of a loader worker. A
# fetch waits for a CPU (QUEUED), for storage, or for anything else (BLOCKED). BEGUN is the time of the first fetch,
# PRIVATE the bytes of the process that no other one shares.
PID, FETCHED, COUNT, CPU, THREADS, QUEUED, STORAGE, BLOCKED, BEGUN, PRIVATE = range(10)
SUMS = (FETCHED, COUNT, CPU, THREADS, QUEUED, STORAGE, BLOCKED)
SLOT_WORDS, SLOTS = 16, 128
Place = Tuple[Words, int]  # the words, and the first one of a slot in them

_NAME = "gpugauge-loader"
_BYTES = 8 * SLOT_WORDS * SLOTS
_MAX_DESCRIPTORS = 4096  # of a training process that are looked at
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Fetches that are shorter are measured once in this time, and the measurement holds for those in between.
_SHORT_NS, _SAMPLE_NS = 20_000_000, 50_000_000
_MEMORY_NS = 5_000_000_000  # between two readings of the memory of a process


class SlotMemory:
    """The slots. The training process creates the memory; a forked loader worker inherits it, a spawned one finds it
    among the files of its parent. Raises OSError where memfd is refused.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        opened = os.memfd_create(_NAME, os.MFD_CLOEXEC) if descriptor is None else descriptor
        try:
            if descriptor is None:
                # Written, not only extended: memory that is not available is refused here, and not by SIGBUS later.
                os.write(opened, bytes(_BYTES))
            self.words = memoryview(mmap.mmap(opened, _BYTES)).cast("Q")
        finally:
            os.close(opened)

    @classmethod
    def of_process(cls, pid: int) -> SlotMemory | None:
        """Return the memory of another process, None if it has none or does not show it."""
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in islice(entries, _MAX_DESCRIPTORS):
                if os.readlink(entry.path).startswith(f"/memfd:{_NAME}"):
                    return cls(os.open(entry.path, os.O_RDWR | os.O_CLOEXEC))
        return None

    def slot_of(self, pid: int) -> int | None:
        """Return the first word of the slot of a process, None without one."""
        words = self.words
        return next((at for at in range(0, len(words), SLOT_WORDS) if words[at + PID] == pid), None)

    def take(self, pids: Sequence[int]) -> list[int]:
        """Return empty slots for processes, fewer if there are not enough."""
        words = self.words
        free = [at for at in range(0, len(words), SLOT_WORDS) if not words[at + PID]][: len(pids)]
        for number, at in enumerate(free):
            for word in range(1, SLOT_WORDS):
                words[at + word] = 0
            words[at + PID] = pids[number]
        return free

    def release(self, slots: Sequence[int]) -> None:
        """Make slots free."""
        for at in slots:
            self.words[at + PID] = 0


class Meter:
    """Measures the fetches of one fetcher, or the waits that a program declares, and adds them to a slot. It takes some
    40 µs. `find` returns the slot, and is asked again while that is None. The first fetch is the start of a loader. An
    error ends the measurement, and calls `failed`. It has no reference to the fetcher, which the program expects to end
    with its iterator. `whole` measures the process: only of a loader worker, which has nothing else to do.
    """

    _fetching: ClassVar[set[int]] = set()  # threads

    def __init__(self, find: Callable[[], Place | None], failed: Callable[[], object], whole: bool = False) -> None:
        self._find, self._failed, self._whole = find, failed, whole
        self._usage = resource.RUSAGE_SELF if whole else resource.RUSAGE_THREAD
        self.process = os.getpid()
        self.place: Place | None = None
        self._first = True
        self._last = _SHORT_NS
        self._due = self._memory_due = 0
        self._unmeasured = self._pending = 0
        self._cpu: int | None = None  # nanoseconds of the process at the end of the last fetch
        self._start: tuple[int, int, int] | None = None

    def fetch(self, function: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        """Return the batch of an index, which `function` fetches."""
        thread = get_ident()
        if thread in self._fetching:
            return function(fetcher, index)  # a loader inside a dataset is a part of the outer one
        self._fetching.add(thread)
        try:
            began = CLOCKS[0]()
            self.begin(began)
            batch = function(fetcher, index)
            self.end(began)
            return batch
        finally:
            self._fetching.discard(thread)

    def begin(self, now: int) -> None:
        """Begin a fetch at `now` (perf_counter_ns)."""
        try:
            self.place = self.place or self._find()
            self._start = None
            if self.place is not None and self._first:
                words, at = self.place
                words[at + BEGUN] = words[at + BEGUN] or now
            elif self.place is not None and (self._last >= _SHORT_NS or now >= self._due):
                self._start = self._read()
                if self._cpu is None and self._whole:
                    self._cpu = time.process_time_ns()
        except Exception:
            self._stop()

    def end(self, began: int) -> None:
        """End a fetch that began at `began`."""
        try:
            if self.place is not None:
                words, at = self.place
                if not self._first:
                    self._add(words, at, CLOCKS[0](), began)
                self._first = False
                words[at + FETCHED] += 1
        except Exception:
            self._stop()

    def _stop(self) -> None:
        self.place, self._find = None, lambda: None
        self._failed()

    def _add(self, words: Words, at: int, now: int, began: int) -> None:
        wall = self._last = max(1, now - began)
        start = self._start
        if start is None:
            self._unmeasured += wall
            self._pending += 1
            return
        self._due = now + _SAMPLE_NS
        cpu, queued, reads = self._read()
        cpu = max(0, min(cpu - start[0], wall))
        queued = max(0, min(queued - start[1], wall - cpu))
        # The measurement holds for the short fetches since the last one, too.
        factor = 1.0 + self._unmeasured / wall
        words[at + COUNT] += 1 + self._pending
        self._unmeasured = self._pending = 0
        words[at + CPU] += int(cpu * factor)
        words[at + QUEUED] += int(queued * factor)
        words[at + (STORAGE if reads > start[2] else BLOCKED)] += int((wall - cpu - queued) * factor)
        if self._cpu is not None:
            process = time.process_time_ns()
            words[at + THREADS] += max(0, process - self._cpu - int(cpu * factor))
            self._cpu = process
            if now >= self._memory_due:
                self._memory_due = now + _MEMORY_NS
                words[at + PRIVATE] = private_bytes()

    def _read(self) -> tuple[int, int, int]:
        """Return nanoseconds of CPU, nanoseconds of waits for a CPU, and reads from storage."""
        usage = resource.getrusage(self._usage)
        return time.thread_time_ns(), queued_nanoseconds() or 0, usage.ru_inblock + usage.ru_majflt


def _read(path: str) -> list[bytes]:
    """Return the words of a file of /proc."""
    # Opened each time: a program that becomes a daemon closes all files, and their numbers are used again.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256).split()
    finally:
        os.close(descriptor)


def queued_nanoseconds() -> int | None:
    """Return the time for which the calling thread has waited for a CPU, None where the kernel does not count it."""
    try:
        return int(_read("/proc/thread-self/schedstat")[1])
    except OSError:
        return None


def thread_seconds() -> tuple[float, float] | None:
    """Return the seconds of the calling thread on a CPU and waiting for one, None where the kernel counts none."""
    queued = queued_nanoseconds()
    return None if queued is None else (time.thread_time_ns() / 1e9, queued / 1e9)


def private_bytes() -> int:
    """Return the resident memory of this process without what it shares with files, tmpfs and other mappings."""
    _, resident, shared, *_ = _read("/proc/self/statm")
    return (int(resident) - int(shared)) * _PAGE_BYTES


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

    def totals(self) -> list[int]:
        """Return the sums over all processes in the order of SUMS, the epochs, the starts of workers, and the
        nanoseconds of their starts and ends.
        """
        sums = [sum(self.words[at + word] for at in self.slots) for word in SUMS]
        begun = [self.words[at + BEGUN] for at in self.slots if self.words[at + BEGUN]]
        starting = max(0, min(begun) - self.started) + self.ending if begun and self.started else 0
        return [*sums, self.epochs, bool(self.started), starting]

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
        self._ended = [0] * (len(SUMS) + 3)  # totals of the iterators that no longer exist
        self._ended_at: dict[int, int] = {}  # by number of workers, the end of the last iterator that trained
        self._starting = 0
        words = [0] * SLOT_WORDS
        self.own = Meter(lambda: (words, 0), bool)  # of the waits that the program declares
        self._cpu = time.process_time_ns()
        self._thread, self._before, self._queued = get_ident(), queued_nanoseconds() or 0, 0
        self.begun: tuple[float, float] | None = None  # thread_seconds() at the begin of the training
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
        if known is None and meter is not None and meter.place is not None:
            words, at = meter.place
            if meter.process != os.getpid():  # this is a forked child: the counts so far are those of its parent
                meter.process, words[:] = os.getpid(), [0] * len(words)
            known = _Iterator(iterator, words, (at,))
            known.epochs = 1
            self._iterators.append(known)
        if known is not None:
            known.trains = True

    def end_workers(self, iterator: Any, nanoseconds: int) -> None:
        """Add the time that the end of the workers took."""
        if (known := self._find(iterator)) is not None:
            known.ending += nanoseconds

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
                    self._ended = _total((self._ended, known.totals()))
                if known.memory is not None:
                    known.memory.release(known.slots)

    def message(self, declared: bool, trains: bool = True) -> wire.Loader | None:
        """Return the totals for a message; None before a batch is loaded, and while several loaders are in use, also by
        turns. `declared` allows a loader that is not torch's; `trains` is whether the training thread calls.
        """
        self._fold()
        trained = [known for known in self._iterators if known.trains and any(known.totals()[: len(SUMS)])]
        totals = _total((self._ended, *(known.totals() for known in trained)))
        if not totals[0] and declared and self.own.place is not None:
            totals[: len(SUMS)] = [self.own.place[0][word] for word in SUMS]
        late = time.monotonic_ns() - _BY_TURNS_NS
        numbers = {known.workers for known in trained} | {count for count, end in self._ended_at.items() if end > late}
        if not totals[0] or len(trained) > 1 or len(numbers) > 1:
            return None
        batches, measured, *nanoseconds, epochs, starts, start_ns = totals
        cpu, threads, queued, storage, blocked = (value / 1e9 for value in nanoseconds)
        last = trained[0] if trained else None
        waited = self._queued_until_now(trains)
        return wire.Loader(
            *(batches, measured, cpu, threads, None if waited is None else queued, storage, blocked),
            *(epochs, starts, start_ns / 1e9),
            slowest=last.slowest() if last else None,
            worker_bytes=max((last.words[at + PRIVATE] for at in last.slots), default=0) or None if last else None,
            process_cpu_seconds=(time.process_time_ns() - self._cpu) / 1e9,
            thread_queued_seconds=None if waited is None else self._queued / 1e9,
        )

    def _queued_until_now(self, trains: bool) -> int | None:
        """Return for how long the training thread has waited for a CPU; other threads return what it has read last."""
        waited, thread = queued_nanoseconds(), get_ident()
        if waited is not None and trains:
            if thread != self._thread:
                self._thread, self._before = thread, waited - self._queued
            self._queued = max(self._queued, waited - self._before)
        return waited


def _total(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(row[place] for row in rows) for place in range(len(rows[0]))]


def worker_place(inherited: SlotMemory | None, parent: int | None) -> Place | None:
    """Return the slot of this loader worker, None if its parent has no memory or no slot for it yet."""
    try:
        memory = inherited or (None if parent is None else SlotMemory.of_process(parent))
    except OSError:
        return None
    at = None if memory is None else memory.slot_of(os.getpid())
    return None if memory is None or at is None else (memory.words, at)
