"""The daemon's side of the Unix seqpacket socket: opening it, and reading one connection within its limits."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

from gpugauge.sessions.ends import Ending, since_boot
from gpugauge.sessions.started import checked_start
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from gpugauge.wire.decoding import decode
from gpugauge.wire.record import RECORD_BYTES, SharedRecord

# Messages accepted at once, above the steady rate: after a pause of the daemon all queued messages arrive together, and
# the queue of a hook (hook/client.py) holds 277 of the smallest.
MESSAGE_BURST = 300
ACCEPT_BACKLOG = 1024  # connections not yet accepted: all ranks of a node connect in the same second


class RejectedError(Exception):
    """The connection must be closed. `reason` is the value of the label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Connection:
    """One accepted connection: its peer, its remaining message credit, its session and its shared record."""

    def __init__(self, sock: socket.socket, rate: float) -> None:
        self.sock = sock
        self.pid, self.uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.owners = {"user": str(self.uid), "cgroup": _cgroup(self.pid)}
        self.opened = time.monotonic()
        self._accepted = since_boot()
        self.session: str | None = None
        self.bye: str | None = None
        self.record: SharedRecord | None = None
        self._record_descriptor: int | None = None
        self._received_nothing = True
        self._rate = rate
        self._credit = float(MESSAGE_BURST)
        self._credited = self.opened

    def receive(self) -> wire.Message | None:
        """Return the next message, or None at the end of the connection. Raises RejectedError and BlockingIOError."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self.sock, wire.MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        for descriptor in descriptors:
            # Only the first message may carry a record; every other descriptor is closed unread.
            if self._received_nothing and _is_shared_record(descriptor):
                self._record_descriptor = descriptor
            else:
                os.close(descriptor)
        if not data:
            return None
        self._received_nothing = False
        self._charge()
        if flags & socket.MSG_TRUNC:
            raise RejectedError("oversized", f"a message has at most {wire.MAX_MESSAGE_BYTES} bytes")
        try:
            message = decode(data)
        except wire.WireError as error:
            raise RejectedError(error.reason, str(error)) from None
        if isinstance(message, wire.Hello):
            return replace(message, started=checked_start(message.started, self.pid))
        return message

    def read_record(self) -> bool:
        """Update `record` from the shared record; return whether the connection has one. A half-written record leaves
        `record` unchanged.
        """
        if self._record_descriptor is None:
            return False
        if self.bye is not None:
            return True  # what follows the last message is the end of the interpreter
        now, unix = time.monotonic_ns(), time.time()
        found = wire_record.read(os.pread(self._record_descriptor, RECORD_BYTES, 0), now, unix)
        if found is not None:
            before = self.record.seconds if self.record else {}
            # The clock here is not read at the same instant as that of the process: counters must not decrease.
            seconds = {phase: max(value, before.get(phase, 0.0)) for phase, value in found.seconds.items()}
            self.record = replace(found, seconds=seconds)
        return True

    def end(self, reason: str) -> None:
        """Read the shared record a last time: this is the last message, with the reason for the end."""
        self.read_record()
        self.bye = reason

    def ending(self) -> Ending:
        """Return the end of the process that has closed the connection."""
        return Ending(self.session or "", self.bye, self.sock, self.pid, self._accepted)

    def close(self) -> None:
        """Close the connection and the shared record."""
        self.sock.close()
        if self._record_descriptor is not None:
            os.close(self._record_descriptor)
            self._record_descriptor = None

    def _charge(self) -> None:
        now = time.monotonic()
        self._credit = min(float(MESSAGE_BURST), self._credit + (now - self._credited) * self._rate) - 1
        self._credited = now
        if self._credit < 0:
            raise RejectedError("rate", f"at most {self._rate:g} messages a second are expected")


def _is_shared_record(descriptor: int) -> bool:
    """Return whether this is memory of the right size, sealed against changes of it: other files may fail or block."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        os.pread(descriptor, 1, 0)  # a descriptor opened for writing only has the seals and the size, too
    except OSError:
        return False
    required = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    return seals & required == required and size == RECORD_BYTES


def listen(path: Path, mode: int) -> socket.socket:
    """Return a listening socket at `path`; replace the socket of a daemon that has ended. Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # independent of the umask: trainings of other users open the socket in this folder
    _remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(ACCEPT_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale_socket(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        raise OSError(errno.EEXIST, "the path exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue is full, so a daemon holds the socket
    raise OSError(errno.EADDRINUSE, "another daemon listens on it")


def _cgroup(pid: int) -> str:
    """Return the content of /proc/PID/cgroup; empty if it cannot be read (another pid namespace)."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace") if pid else ""
    except OSError:
        return ""
