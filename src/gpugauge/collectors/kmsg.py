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

# "6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
# With MIG "(PCI:0000:3b:00 GPU-I:05)", with old drivers "(0000:3b:00)".
_RECORD = re.compile(
    rb"(\d{1,9}),[^;\n]*;NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2})[^)\n]*\): (\d{1,5})\b"
)
_MAX_RECORD_BYTES = 8192  # the kernel's own limit
_MAX_RECORDS_PER_READ = 1000  # a flooded log must not delay the other collectors
_REOPEN_SECONDS = 60.0


class KernelXid(NamedTuple):
    """An Xid error of the GPU at a PCI address in the spelling of `pci_address`."""

    address: str
    xid: int


def pci_address(bus_id: str) -> str:
    """Return domain (four digits), bus and device of a PCI bus id. NVML writes the domain with eight digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest.partition('.')[0]}"


class KernelLog:
    """Non-blocking reader of /dev/kmsg, from the end of the log on. Without permission (CAP_SYSLOG), `error` is set."""

    def __init__(self, path: str | Path = "/dev/kmsg") -> None:
        self._path = str(path)
        self._file: int | None = None
        self._retry_at = float("-inf")
        self.error = ""

    @property
    def up(self) -> bool:
        """Whether the log is open."""
        return self._file is not None

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def read(self, now: float) -> list[KernelXid]:
        """Return the Xid errors since the last call, oldest first. `now` is in monotonic seconds. Does not raise."""
        if self._file is None and now >= self._retry_at:
            self._open(now)
        found: list[KernelXid] = []
        for _ in range(_MAX_RECORDS_PER_READ):
            if self._file is None:
                break
            try:
                record = os.read(self._file, _MAX_RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten; the next read returns the oldest one
                    continue
                if error.errno != errno.EAGAIN:
                    self._fail(error, now)
                break
            if not record:
                break
            found += parse(record)
        return found

    def _open(self, now: float) -> None:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a pipe cannot seek
                os.lseek(self._file, 0, os.SEEK_END)
            self.error = ""
        except OSError as error:
            self._fail(error, now)

    def _fail(self, error: OSError, now: float) -> None:
        self.close()
        self._retry_at = now + _REOPEN_SECONDS
        self.error = f"{self._path}: {error.strerror}"


def parse(records: bytes) -> list[KernelXid]:
    """Return the Xid errors in kernel log records. Records that programs wrote are ignored."""
    return [
        KernelXid(pci_address(match[2].decode()), int(match[3]))
        for line in records.splitlines()
        if (match := _RECORD.match(line)) and int(match[1]) < 8  # facility 0: records of the kernel itself
    ]
