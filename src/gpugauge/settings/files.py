"""Files that an administrator names. Whatever a path leads to, reading it neither blocks nor takes much memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

MAX_BYTES = 1 << 20
"""The size of a file that a person wrote, or of certificates, at most."""

_T = TypeVar("_T")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileError(Exception):
    """A file that cannot be read. The message continues a path: `/etc/x: MESSAGE`."""


class TimeoutExceeded(Exception):  # noqa: N818  (the caller names the file)
    """The files were not read in time."""


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


class TimedReading(Generic[_T]):
    """Calls a function that reads files in a thread, and waits for it at most some seconds: the files may be on a file
    system that hangs. While a call hangs, no other one is started.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None

    @property
    def hangs(self) -> bool:
        """Whether the last call still runs."""
        return self._thread is not None and self._thread.is_alive()

    def call(self, seconds: float, function: Callable[[], _T]) -> _T:
        """Return the result of the function, or raise its exception. Raises TimeoutExceeded."""
        if self.hangs:
            raise TimeoutExceeded
        result: list[Any] = []
        self._thread = Thread(target=_call, args=(function, result), name="read-files", daemon=True)
        self._thread.start()
        self._thread.join(seconds)
        if not result:
            raise TimeoutExceeded
        value, error = result
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]  # of another thread


def _call(function: Callable[[], object], result: list[Any]) -> None:
    try:
        result += [function(), None]
    except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
        result += [None, error]
