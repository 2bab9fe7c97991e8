"""Errors of GPUs in the kernel log: the driver's own events do not include all of them.

https://docs.kernel.org/admin-guide/abi-testing.html (dev-kmsg)
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpugauge.driver.api import KernelXid

_MAX_RECORD_BYTES = 8192  # the kernel's own limit
_MAX_RECORDS_PER_READ = 1000  # a flooded log must not delay the other collectors
_REOPEN_SECONDS = 60.0
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class KernelLog:
    """Non-blocking reader of /dev/kmsg: `read` from the end of the log on, `past` what was in it before. Without
    permission (CAP_SYSLOG), `error` is set. `parse` returns the errors in records of the log.
    """

    def __init__(self, path: str | Path, parse: Callable[[bytes], list[KernelXid]]) -> None:
        self._path, self._parse = str(path), parse
        self._file: int | None = None
        self._past: int | None = None
        self._past_wanted = True
        self._retry_at = float("-inf")
        self.error = ""

    @property
    def up(self) -> bool:
        """Whether the log is open."""
        return self._file is not None

    @property
    def has_past(self) -> bool:
        """Whether `past` has more to return."""
        return self._past is not None

    def close(self) -> None:
        """Close the log."""
        for file in (self._file, self._past):
            if file is not None:
                os.close(file)
        self._file = self._past = None

    def read(self, now: float) -> list[KernelXid]:
        """Return the Xid errors since the last call, oldest first. `now` is in monotonic seconds. Does not raise."""
        if self._file is None and now >= self._retry_at:
            self._open(now)
        if self._file is None:
            return []
        found, end = self._read(self._file)
        if end is not None and end.errno != errno.EAGAIN:
            self._fail(end, now)
        return found

    def past(self) -> list[KernelXid]:
        """Return the next errors from before the log was opened, oldest first. At the end of the log it is empty."""
        if self._past is None:
            return []
        found, end = self._read(self._past)
        if end is not None:
            os.close(self._past)
            self._past = None
        return found

    def _open(self, now: float) -> None:
        try:
            self._file = os.open(self._path, _FLAGS)
        except OSError as error:
            self._fail(error, now)
            return
        self.error = ""
        with contextlib.suppress(OSError):  # a pipe cannot seek, and has no past
            os.lseek(self._file, 0, os.SEEK_END)
            if self._past_wanted:
                self._past = os.open(self._path, _FLAGS)
                self._past_wanted = False

    def _fail(self, error: OSError, now: float) -> None:
        self.close()
        self._retry_at = now + _REOPEN_SECONDS
        self.error = f"{self._path}: {error.strerror}"

    def _read(self, file: int) -> tuple[list[KernelXid], OSError | None]:
        """Return the errors in the next records, and the one that ended the reading: EAGAIN at the end of the log."""
        found: list[KernelXid] = []
        for _ in range(_MAX_RECORDS_PER_READ):
            try:
                record = os.read(file, _MAX_RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten; the next read returns the oldest one
                    continue
                return found, error
            if not record:  # a file that is no device
                return found, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            found += self._parse(record)
        return found, None
