"""Files that an administrator names. Whatever a path leads to, reading it neither blocks nor takes much memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_BYTES = 1 << 20
"""The size of a file that a person wrote, or of certificates, at most."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileError(Exception):
    """A file that cannot be read. The message continues a path: `/etc/x: MESSAGE`."""


def read_file(path: Path, name: str) -> bytes:
    """Return the content of a regular file of at most MAX_BYTES; `name` is what it should be. Raises FileError."""
    try:
        _check_kind(path.stat(), name)  # before it is opened: to open a device may change its state
        # Without O_NONBLOCK, opening a named pipe that was put there in the meantime waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            _check_kind(os.fstat(descriptor), name)
            return _content(descriptor, name)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise FileError("cannot be a path") from None


def _check_kind(status: os.stat_result, name: str) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise FileError(f"expected a {name}, this is {_KINDS.get(kind, 'something else')}")


def _content(descriptor: int, name: str) -> bytes:
    # The stated size is not used: it is 0 for a file of /proc or /sys.
    content = b""
    while part := os.read(descriptor, MAX_BYTES + 1 - len(content)):
        content += part
        if len(content) > MAX_BYTES:
            raise FileError(f"larger than {MAX_BYTES} bytes, this is no {name}")
    return content
