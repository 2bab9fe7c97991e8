"""Descriptors that arrive with a message."""

from __future__ import annotations

import _socket
import fcntl
import posix
import struct

_MAX_ALLOCATED_BYTES = 4 << 20  # of a record: one page, which may be a huge one
# With less room, the kernel closes the surplus on receipt, in the thread that receives. 253 is SCM_MAX_FD.
ANCILLARY_BYTES = _socket.CMSG_SPACE(253 * 4)


def sort(ancillary: list[tuple[int, int, bytes]], record_bytes: int) -> tuple[int | None, list[int]]:
    """Return the first shared record of `record_bytes` (0: none is wanted), and the other descriptors."""
    record, others = None, list[int]()
    for _, _, data in ancillary:
        for (descriptor,) in struct.iter_unpack("i", data[: len(data) // 4 * 4]):
            if record_bytes and record is None and _is_shared_record(descriptor, record_bytes):
                record = descriptor
            else:
                others.append(descriptor)
    return record, others


def _is_shared_record(descriptor: int, size: int) -> bool:
    """Return whether this is memory of the right size, sealed against changes of it: other files may fail or block."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        found = posix.fstat(descriptor)
        posix.pread(descriptor, 1, 0)  # a descriptor opened for writing only has the seals and the size, too
    except OSError:
        return False
    required = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    # Memory behind the end was allocated before the seals (FALLOC_FL_KEEP_SIZE). The last close frees it: 0.1 s a GiB.
    return seals & required == required and found.st_size == size and found.st_blocks * 512 <= _MAX_ALLOCATED_BYTES
