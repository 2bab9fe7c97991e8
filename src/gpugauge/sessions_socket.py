"""A Unix seqpacket socket on the daemon's side: how it is opened, and what one connection may send."""

from __future__ import annotations

import errno
import socket
import struct
import time
from pathlib import Path

from gpugauge import wire

BURST = 20  # messages that may come at once, above the steady rate
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
        self.opened = time.monotonic()
        self.session: str | None = None
        self.bye: str | None = None
        self._rate = rate
        self._credit = float(BURST)
        self._credited = self.opened

    def receive(self) -> wire.Message | None:
        """Return the next message, None at the end of the connection; raises RejectedError."""
        try:
            data, _, flags, _ = self.sock.recvmsg(wire.MAX_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        self._charge()
        if flags & socket.MSG_TRUNC:
            raise RejectedError("oversized", f"a message has at most {wire.MAX_BYTES} bytes")
        try:
            return wire.decode(data)
        except wire.WireError as error:
            raise RejectedError(error.reason, str(error)) from None

    def _charge(self) -> None:
        now = time.monotonic()
        self._credit = min(float(BURST), self._credit + (now - self._credited) * self._rate) - 1
        self._credited = now
        if self._credit < 0:
            raise RejectedError("rate", f"at most {self._rate:g} messages a second are expected")


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
