"""A connection that the receiver has accepted, and the check for another daemon at the socket's path."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

from gpugauge.sessions.ends import PROC, Ending
from gpugauge.sessions.inquiry import Inquirer
from gpugauge.sessions.receiver.protocol import PEER
from gpugauge.sessions.threads import TrainingThread
from gpugauge.wire import record as wire_record
from gpugauge.wire.record import RECORD_BYTES, SharedRecord

_FULL_SECONDS, _PROBE_SECONDS = 2.0, 0.02  # for which a queue is full until nobody serves it; between two looks
_MAX_PATH_BYTES = 107  # of struct sockaddr_un, without the zero byte


class RejectedError(Exception):
    """The connection must be closed. `reason` is the value of the label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Connection:
    """A connection that has sent a message: its process at the accept (`pid` 0: not proven), session and record."""

    def __init__(self, number: int, identity: bytes) -> None:
        self.number = number
        self.pid, self.uid, self.start, self._accepted, self._claimed = PEER.unpack_from(identity)
        self.cgroup = identity[PEER.size :].decode(errors="replace")
        self.session: str | None = None
        self.bye: str | None = None
        self.memory: Path | None = None  # the folder of its cgroup that MemoryKills watches
        self.record: SharedRecord | None = None
        self.thread = TrainingThread(self.pid)
        self.inquirer = Inquirer()
        self._record_descriptor: int | None = None
        self.lost_at: float | None = None  # monotonic time at which the receiver that held the connection ended

    def attach(self, descriptor: int) -> None:
        """Take a descriptor of a shared record."""
        self.close()
        self._record_descriptor = descriptor

    def read_record(self) -> bool:
        """Update `record` and `thread`; return whether there is a record. One that is half-written changes nothing."""
        if self._record_descriptor is None:
            return False
        if self.bye is not None:
            return True  # what follows the last message is the end of the interpreter
        now, unix = time.monotonic_ns(), time.time()
        try:
            data = os.pread(self._record_descriptor, RECORD_BYTES, 0)
        except OSError:  # its page is in swap, and the memory of the cgroup of its process is used up
            data = b""
        found = wire_record.read(data, now, unix)
        if found is not None:
            before = self.record.seconds if self.record else {}
            # The clock here is not read at the same instant as that of the process: counters must not decrease.
            seconds = {phase: max(value, before.get(phase, 0.0)) for phase, value in found.seconds.items()}
            self.record = replace(found, seconds=seconds)
            if self.pid:
                self.thread.read(found.thread, seconds, now / 1e9)
        return True

    def asks(self, now: float) -> bool:
        """Return whether to ask the process now (monotonic seconds) where it is."""
        inquirer, unix = self.inquirer, time.time()
        if self.bye is not None or not inquirer.is_due(self.record, now, unix) or inquirer.current is None:
            return False
        stat = PROC.stat(self.pid) if self.pid else None
        stopped = stat is not None and stat.start == self.start and stat.state in "Tt"
        inquirer.current = inquirer.current.ask(unix, stopped=stopped)
        return True

    def end(self, reason: str) -> None:
        """Read the shared record a last time: this is the last message, with the reason for the end."""
        self.read_record()
        self.bye = reason

    def ending(self, pidfd: int | None, *, for_memory: bool = False) -> Ending:
        """Return the end of the process that has closed the connection. `pidfd` is its descriptor, if there is one."""
        return Ending(self.session or "", self.bye, pidfd, self._claimed, self._accepted, for_memory=for_memory)

    def alive(self) -> bool | None:
        """Return whether the process runs, None if it has no pid here."""
        stat = PROC.stat(self.pid)
        return stat is not None and stat.start == self.start and stat.state not in "ZX" if self.pid else None

    def close(self) -> None:
        """Close the shared record."""
        if self._record_descriptor is not None:
            os.close(self._record_descriptor)
            self._record_descriptor = None


def prepare(path: Path) -> None:
    """Make the folder of the socket. Raises OSError if another daemon, or something else, is at the path."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"AF_UNIX path too long: at most {_MAX_PATH_BYTES} bytes")
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in made:
        folder.chmod(0o755)  # independent of the umask: trainings of other users open the socket in this folder
    if not path.exists():
        return
    if not path.is_socket():
        raise OSError(errno.EEXIST, "the path exists and is not a socket")
    deadline = time.monotonic() + _FULL_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        while (pid := _listener(probe, path)) is None:
            if time.monotonic() >= deadline:
                return
            time.sleep(_PROBE_SECONDS)
    if pid and not _is_dead(pid):
        raise OSError(errno.EADDRINUSE, "another daemon listens on it")


def _listener(probe: socket.socket, path: Path) -> int | None:
    """Return the pid of the listener at a path, 0 without one, None if its queue stays full. Raises OSError."""
    try:
        probe.connect(str(path))
    except ConnectionRefusedError:
        return 0
    except BlockingIOError:
        return None
    pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _is_dead(pid: int) -> bool:
    """Return whether a process has ended as far as it can: a thread that hangs inside the kernel keeps its sockets."""
    stat = PROC.stat(pid)
    return stat is not None and stat.state in "ZX"
