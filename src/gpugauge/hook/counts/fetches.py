"""The time of batches where they are loaded: in the processes of a loader, or in the thread that trains.

Each process writes into a slot of its own in memory that it shares with the training process.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from _thread import get_ident
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, ClassVar

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.live import Words

# Words of a slot, each of eight bytes: the pid it belongs to, number of fetches, number of measured ones, and
# nanoseconds of these. CPU is that of the loading thread, THREADS that of the other threads of a loader worker. A
# fetch waits for a CPU (QUEUED), for storage, or for anything else (BLOCKED). BEGUN is the time of the first fetch,
# PRIVATE the bytes of the process that no other one shares.
PID, FETCHED, COUNT, CPU, THREADS, QUEUED, STORAGE, BLOCKED, BEGUN, PRIVATE = range(10)
SUMS = (FETCHED, COUNT, CPU, THREADS, QUEUED, STORAGE, BLOCKED)
SLOT_WORDS, SLOTS = 16, 128

_NAME = "gpugauge-loader"
_BYTES = 8 * SLOT_WORDS * SLOTS
_MAX_DESCRIPTORS = 4096  # of a training process that are looked at
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Fetches that are shorter are measured once in this time, and the measurement holds for those in between.
_SHORT_NS, _SAMPLE_NS = 20_000_000, 50_000_000
_MEMORY_NS = 5_000_000_000  # between two readings of the memory of a process


class SlotMemory:
    """The slots. The training process creates the memory before it starts loader workers; a forked worker inherits it,
    a spawned one finds it among the files of its parent. Raises OSError where memfd is refused.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        opened = os.memfd_create(_NAME, os.MFD_CLOEXEC) if descriptor is None else descriptor
        try:
            if descriptor is None:
                # Written, not only extended: memory that is not available is refused here, and not by SIGBUS later.
                os.write(opened, bytes(_BYTES))
            self._memory = mmap.mmap(opened, _BYTES)
        finally:
            os.close(opened)
        self.words = memoryview(self._memory).cast("Q")

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
    """Measures fetches of the calling thread and adds them to `words` from `at` on. A measurement takes some 40 µs.

    `whole` measures the whole process: only of a loader worker, which has nothing else to do.
    """

    def __init__(self, words: Words, at: int = 0, whole: bool = False) -> None:
        self.words, self.at = words, at
        self._whole = whole
        self._usage = resource.RUSAGE_SELF if whole else resource.RUSAGE_THREAD
        self._last = _SHORT_NS
        self._due = self._memory_due = 0
        self._unmeasured = self._pending = 0
        self._process: int | None = None  # CPU nanoseconds of the process at the end of the last fetch
        self._start: tuple[int, int, int] | None = None

    def begin(self, now: int) -> None:
        """Begin a fetch at `now` (perf_counter_ns)."""
        self._start = None
        if self._last >= _SHORT_NS or now >= self._due:
            self._start = self._read()
            if self._process is None and self._whole:
                self._process = time.process_time_ns()

    def end(self, began: int, now: int) -> None:
        """End a fetch that began at `began`."""
        wall = self._last = max(1, now - began)
        words, at, start = self.words, self.at, self._start
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
        if self._process is not None:
            process = time.process_time_ns()
            words[at + THREADS] += max(0, process - self._process - int(cpu * factor))
            self._process = process
            if now >= self._memory_due:
                self._memory_due = now + _MEMORY_NS
                words[at + PRIVATE] = private_bytes()

    def _read(self) -> tuple[int, int, int]:
        """Return nanoseconds of CPU, nanoseconds of waits for a CPU, and reads from storage."""
        usage = resource.getrusage(self._usage)
        return time.thread_time_ns(), queued_nanoseconds() or 0, usage.ru_inblock + usage.ru_majflt


def queued_nanoseconds() -> int | None:
    """Return the time for which the calling thread has waited for a CPU, None where the kernel does not count it."""
    # Opened each time: a program that becomes a daemon closes all files, and their numbers are used again.
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, 64).split()[1])
    finally:
        os.close(descriptor)


def private_bytes() -> int:
    """Return the resident memory of this process without what it shares with files, tmpfs and other mappings."""
    descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, resident, shared, *_ = os.read(descriptor, 256).split()
        return (int(resident) - int(shared)) * _PAGE_BYTES
    finally:
        os.close(descriptor)


class FetchMeter:
    """Measures the fetches of one fetcher. `meter_of` returns the meter of the calling thread; it is asked again while
    that is None. The first fetch is the start of a loader and not measured. An error of the measurement ends it, and
    calls `failed`. It has no reference to the fetcher: the program expects that this ends with its iterator.
    """

    _fetching: ClassVar[set[int]] = set()  # threads

    def __init__(
        self,
        meter_of: Callable[[], Meter | None],
        failed: Callable[[], object],
        words: Words | None = None,
    ) -> None:
        """`words` are those of the meter, if it belongs to this function alone."""
        self._meter_of, self._failed = meter_of, failed
        self.words = words
        self.process = os.getpid()
        self._meter: Meter | None = None
        self._first = True

    def fetch(self, function: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        """Return the batch of an index, which `function` fetches."""
        thread = get_ident()
        if thread in self._fetching:
            return function(fetcher, index)  # a loader inside a dataset is a part of the outer one
        self._fetching.add(thread)
        try:
            meter, began = self._begin()
            batch = function(fetcher, index)
            if meter is not None:
                self._end(meter, began)
            return batch
        finally:
            self._fetching.discard(thread)

    def _begin(self) -> tuple[Meter | None, int]:
        now = CLOCKS[0]()
        try:
            meter = self._meter = self._meter or self._meter_of()
            if meter is not None and self._first:
                meter.words[meter.at + BEGUN] = meter.words[meter.at + BEGUN] or now
            elif meter is not None:
                meter.begin(now)
        except Exception:
            self._stop()
        return self._meter, now

    def _end(self, meter: Meter, began: int) -> None:
        try:
            if not self._first:
                meter.end(began, CLOCKS[0]())
            self._first = False
            meter.words[meter.at + FETCHED] += 1
        except Exception:
            self._stop()

    def _stop(self) -> None:
        self._meter, self._meter_of = None, _no_meter
        self._failed()


def _no_meter() -> None:
    return None
