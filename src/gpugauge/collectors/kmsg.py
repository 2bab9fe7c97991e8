"""Xid errors in the kernel log. NVML's events do not include all of them (79, 119, 120 are missing); the log does.

https://docs.kernel.org/admin-guide/abi-testing.html (dev-kmsg), https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

from gpugauge.driver.missing import pci_address

# "6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
# With MIG "(PCI:0000:3b:00 GPU-I:05)", with old drivers "(0000:3b:00)".
# The end of a fault is "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", the start of the
# driver, at boot or after `modprobe`, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06".
_RECORD = re.compile(
    rb"(?P<level>\d{1,9}),\d{1,20},(?P<time>\d{1,20}),[^;\n]*;NVRM: (?:loading NVIDIA UNIX |"
    rb"Xid \((?:PCI:)?(?P<address>[0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2})[^)\n]*\): (?P<xid>\d{1,5})\b"
    rb"(?P<none>, GPU recovery action changed from \S+ \([^)\n]*\) to 0x0\b)?)"
)
_MAX_RECORD_BYTES = 8192  # the kernel's own limit
_MAX_RECORDS_PER_READ = 1000  # a flooded log must not delay the other collectors
_REOPEN_SECONDS = 60.0
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class KernelXid(NamedTuple):
    """An Xid error of the GPU at a PCI address without its function; `seconds` is the kernel's time, since boot. `xid` is
    None where the driver was loaded, and `over` is set where it requires no action any more.
    """

    address: str
    xid: int | None
    seconds: float = 0.0
    over: bool = False


class KernelLog:
    """Non-blocking reader of /dev/kmsg: `read` from the end of the log on, `past` what was in it before. Without
    permission (CAP_SYSLOG), `error` is set.
    """

    def __init__(self, path: str | Path = "/dev/kmsg") -> None:
        self._path = str(path)
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
        found, end = _read(self._file)
        if end is not None and end.errno != errno.EAGAIN:
            self._fail(end, now)
        return found

    def past(self) -> list[KernelXid]:
        """Return the next errors from before the log was opened, oldest first. At the end of the log it is empty."""
        if self._past is None:
            return []
        found, end = _read(self._past)
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


def _read(file: int) -> tuple[list[KernelXid], OSError | None]:
    """Return the Xid errors in the next records, and the error that ended the reading: EAGAIN at the end of the log."""
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
        found += parse(record)
    return found, None


def parse(records: bytes) -> list[KernelXid]:
    """Return the Xid errors in kernel log records, and the starts of the driver. Records that programs wrote are
    ignored.
    """
    return [
        _event(match)
        for line in records.splitlines()
        if (match := _RECORD.match(line)) and int(match["level"]) < 8  # facility 0: records of the kernel itself
    ]


def _event(match: re.Match[bytes]) -> KernelXid:
    seconds = int(match["time"]) / 1e6
    if match["xid"] is None:
        return KernelXid("", None, seconds)
    return KernelXid(pci_address(match["address"].decode()), int(match["xid"]), seconds, bool(match["none"]))
