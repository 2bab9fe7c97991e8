"""The memory of the shared record in the training process; see gpugauge.wire.record."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

from gpugauge.wire import record as wire_record


class RecordMemory:
    """One sealed memfd. Where memfd is refused (an old kernel, a sandbox) it stays closed and nothing is reported.

    `words` are for a writer that changes only some of them; None while the memory is closed.
    """

    def __init__(self) -> None:
        self.words: memoryview | None = None
        self._memory: mmap.mmap | None = None
        self._file: tuple[int, int, int] | None = None

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
        """Create the memory, once."""
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
        self._memory, self._file = memory, (descriptor, found.st_dev, found.st_ino)
        self.words = wire_record.words(memory)

    def write(self, phase: int, since: int, steps: int, batches: int, nanoseconds: Sequence[int]) -> None:
        """Write the whole record, if the memory is open."""
        if self._memory is not None and self.words is not None:
            sequence = self.words[wire_record.SEQUENCE] + 1
            wire_record.write(self._memory, sequence, phase, since, steps, batches, nanoseconds)

    def close(self) -> None:
        """Close the memory. In a forked child the memory of the parent stays open, and the child cannot write to it."""
        descriptor = self.descriptor
        if self.words is not None:
            self.words.release()
        if self._memory is not None:
            self._memory.close()
        if descriptor is not None:
            os.close(descriptor)
        self._memory = self._file = self.words = None
