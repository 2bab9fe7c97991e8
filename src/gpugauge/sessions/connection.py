"""A Unix seqpacket socket on the daemon's side: how it is opened, and what one connection may send."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_page
from gpugauge.wire.record import PAGE_BYTES, Page

# Messages that may come at once, above the steady rate: when the daemon itself stood still, all that was sent comes at
# once, and a hook's queue (hook/client.py) holds 277 of the smallest.
BURST = 300
BACKLOG = 1024  # connections that wait to be accepted: a whole node's ranks begin in the same second


class RejectedError(Exception):
    """The connection deserves to be closed; `reason` is one word for a label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Connection:
    """One accepted connection: who is at the other end, what it may still send, which session it speaks for."""

    def __init__(self, sock: socket.socket, rate: float) -> None:
        self.sock = sock
        self.pid, self.uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.owners = {"user": str(self.uid), "cgroup": _cgroup(self.pid)}
        self.opened = time.monotonic()
        self.session: str | None = None
        self.bye: str | None = None
        self.page: Page | None = None
        self._page_descriptor: int | None = None
        self._silent = True
        self._rate = rate
        self._credit = float(BURST)
        self._credited = self.opened

    def receive(self) -> wire.Message | None:
        """Return the next message, None at the end of the connection; raises RejectedError."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self.sock, wire.MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        for descriptor in descriptors:
            # Only the first message may bring one; whatever else comes is closed unseen.
            if self._silent and _is_page(descriptor):
                self._page_descriptor = descriptor
            else:
                os.close(descriptor)
        if not data:
            return None
        self._silent = False
        self._charge()
        if flags & socket.MSG_TRUNC:
            raise RejectedError("oversized", f"a message has at most {wire.MAX_BYTES} bytes")
        try:
            return wire.decode(data)
        except wire.WireError as error:
            raise RejectedError(error.reason, str(error)) from None

    def look(self) -> bool:
        """Read the page, if there is one; return whether there is. A page in the midst of being written waits."""
        if self._page_descriptor is None:
            return False
        now, unix = time.monotonic_ns(), time.time()
        found = wire_page.read(os.pread(self._page_descriptor, PAGE_BYTES, 0), now, unix)
        if found is not None:
            before = self.page.seconds if self.page else {}
            # A clock that was read a little late here must not let a counter fall.
            seconds = {phase: max(value, before.get(phase, 0.0)) for phase, value in found.seconds.items()}
            self.page = replace(found, seconds=seconds)
        return True

    def close(self) -> None:
        """Close the connection and let go of the page."""
        self.sock.close()
        if self._page_descriptor is not None:
            os.close(self._page_descriptor)
            self._page_descriptor = None

    def _charge(self) -> None:
        now = time.monotonic()
        self._credit = min(float(BURST), self._credit + (now - self._credited) * self._rate) - 1
        self._credited = now
        if self._credit < 0:
            raise RejectedError("rate", f"at most {self._rate:g} messages a second are expected")


def _is_page(descriptor: int) -> bool:
    """Whether this is memory of the right size that nobody can shrink or grow: all else might fail or wait later."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        os.pread(descriptor, 1, 0)  # one that was opened for writing alone has seals and size, too
    except OSError:
        return False
    wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    return seals & wanted == wanted and size == PAGE_BYTES


def listen(path: Path, mode: int) -> socket.socket:
    """Return a listening socket at `path`, in the place of one that a dead daemon left; raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # whatever the umask: trainings of other users look in here
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _make_room(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        raise OSError(errno.EEXIST, "there is something that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue is full, so it lives
    raise OSError(errno.EADDRINUSE, "another daemon listens there")


def _cgroup(pid: int) -> str:
    """Return the cgroup of a process as its kernel writes it; empty if it cannot be seen (another pid namespace)."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace") if pid else ""
    except OSError:
        return ""
