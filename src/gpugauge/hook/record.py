"""This process's end of the page that tells the daemon where it is; see gpugauge.wire.record."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

from gpugauge.wire import record as wire_page


class Page:
    """One sealed memfd. A machine that refuses it (an old kernel, a sandbox) leaves it closed: nothing is told.

    `words` are for a writer that changes only some, as in gpugauge.wire.record; None while there is no page.
    """

    def __init__(self) -> None:
        self.words: memoryview | None = None
        self._memory: mmap.mmap | None = None
        self._file: tuple[int, int, int] | None = None

    @property
    def descriptor(self) -> int | None:
        """The memfd, None if there is none, or if the program has closed it (all of them, to become a daemon)."""
        if self._file is None:
            return None
        descriptor, device, inode = self._file
        try:
            found = os.fstat(descriptor)
        except OSError:
            return None
        return descriptor if (found.st_dev, found.st_ino) == (device, inode) else None

    def open(self) -> None:
        """Make the page, once."""
        if self._memory is not None:
            return
        try:
            descriptor = os.memfd_create("gpugauge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return
        try:
            # Written, and not only extended: memory that cannot be had is refused here, and not by a signal later.
            os.write(descriptor, bytes(wire_page.PAGE_BYTES))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, wire_page.PAGE_BYTES)
            found = os.fstat(descriptor)
        except OSError:
            os.close(descriptor)
            return
        wire_page.write_head(memory)
        self._memory, self._file = memory, (descriptor, found.st_dev, found.st_ino)
        self.words = wire_page.words(memory)

    def write(self, phase: int, since: int, steps: int, batches: int, nanoseconds: Sequence[int]) -> None:
        """Write the whole state, if there is a page."""
        if self._memory is not None and self.words is not None:
            sequence = self.words[wire_page.SEQUENCE] + 1
            wire_page.write(self._memory, sequence, phase, since, steps, batches, nanoseconds)

    def close(self) -> None:
        """Let go of the page; in a forked child the parent's stays as it is, and is not written to any more."""
        descriptor = self.descriptor
        if self.words is not None:
            self.words.release()
        if self._memory is not None:
            self._memory.close()
        if descriptor is not None:
            os.close(descriptor)
        self._memory = self._file = self.words = None
