"""The memory of the shared record in the training process; see gpugauge.wire.record."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Union

from gpugauge.wire import record as wire_record
from gpugauge.wire.record import PHASE, SEQUENCE, SEQUENCE_COPY, SINCE, SPENT, WORDS

# memoryview has no item types at run time in Python 3.9.
Words = Union["memoryview[int]", "list[int]"]


class Live:
    """What every step and batch reads or writes, in one object with slots: after a long step the processor has to load
    each object from memory again, and an object with a dict is three.

    `words` are those of the shared record. Of Phases are `thread`, `phase`, `base`, `since`, `entered`, and `within`:
    whether any phase is entered. `sole` is the identity of the optimizer whose every step is a training step, and
    `last_batch` the time of the last batch. `exposed` is whether the idle time of devices in waits is measured.
    Observer describes `step_due` and `batch_due`.
    """

    __slots__ = (
        "base",
        "batch_due",
        "entered",
        "exposed",
        "last_batch",
        "phase",
        "since",
        "sole",
        "step_due",
        "thread",
        "within",
        "words",
    )

    def __init__(self) -> None:
        self.words: Words = [0] * WORDS
        self.thread = self.phase = self.base = self.since = 0
        self.entered: list[int] = []
        self.exposed = self.within = False
        self.sole: int | None = None
        self.step_due = self.batch_due = self.last_batch = 0

    def switch(self, phase: int, now: int) -> None:
        """Switch to a phase, whatever is entered. Writes only the words that change."""
        before = self.phase
        if phase == before:
            return
        words, spent = self.words, now - self.since
        words[SEQUENCE] = now  # the sequence only has to differ from the previous one
        if spent > 0:
            words[SPENT + before] += spent
        words[PHASE] = phase
        self.phase, self.since = phase, now
        words[SINCE] = words[SEQUENCE_COPY] = now


class RecordMemory:
    """The `words` of the record: a list until open(), then one sealed memfd that the daemon can read.

    Where memfd is refused (an old kernel, a sandbox) they stay a list, and the daemon does not see them.
    """

    def __init__(self) -> None:
        self.live = Live()
        self._memory: mmap.mmap | None = None
        self._file: tuple[int, int, int] | None = None

    @property
    def words(self) -> Words:
        """The words: a list, or the memory."""
        return self.live.words

    @property
    def descriptor(self) -> int | None:
        """The memfd; None if there is none, or if the program has closed it (a program that becomes a daemon does)."""
        if self._file is None:
            return None
        descriptor, device, inode = self._file
        try:
            found = os.fstat(descriptor)
        except OSError:
            return None
        return descriptor if (found.st_dev, found.st_ino) == (device, inode) else None

    def open(self) -> None:
        """Create the memory with the present words, once."""
        if self._memory is not None:
            return
        try:
            descriptor = os.memfd_create("gpugauge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return
        try:
            # Written, not only extended: memory that is not available is refused here, and not by SIGBUS later.
            os.write(descriptor, bytes(wire_record.RECORD_BYTES))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, wire_record.RECORD_BYTES)
            found = os.fstat(descriptor)
        except OSError:
            os.close(descriptor)
            return
        wire_record.write_head(memory)
        wire_record.write(memory, self.words)
        self._memory, self._file = memory, (descriptor, found.st_dev, found.st_ino)
        self.live.words = wire_record.words(memory)

    def close(self) -> None:
        """Close the memory and begin with new words. In a forked child the memory of the parent stays open, and the
        child cannot write to it.
        """
        descriptor, words = self.descriptor, self.words
        self.live.words = [0] * wire_record.WORDS
        if isinstance(words, memoryview):
            words.release()
        if self._memory is not None:
            self._memory.close()
        if descriptor is not None:
            os.close(descriptor)
        self._memory = self._file = None
