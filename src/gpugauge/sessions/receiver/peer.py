"""The other end of a connection: process, user and cgroup, pinned when the connection is accepted."""

from __future__ import annotations

import _socket
import posix
import select
import struct
import time

CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SO_PEERPIDFD = 77  # Linux 6.5
_ENOPROTOOPT, _ESRCH = 92, 3
_MAX_CGROUP_BYTES = 1024
# In the place of the cgroup of a process that has ended; the second one's connection is held by another process.
GONE, PASSED_ON = "gone", "passed on"


class CgroupUser:
    """A user in a cgroup, whom closes and bans apply to. A cgroup alone may be shared by users, a uid by containers."""

    __slots__ = ("cgroup", "uid")

    def __init__(self, uid: int, cgroup: str) -> None:
        self.uid, self.cgroup = uid, cgroup  # the cgroup is "" if the process has no pid here

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CgroupUser) and (self.uid, self.cgroup) == (other.uid, other.cgroup)

    def __hash__(self) -> int:
        return hash((self.uid, self.cgroup))


class Identity:
    """The process that connected: `pid`, 0 unless proven, or `claimed`; `start` in ticks, `accepted` in seconds."""

    __slots__ = ("accepted", "claimed", "owner", "pid", "start")

    def __init__(self, pid: int, start: int, owner: CgroupUser, accepted: float, claimed: int) -> None:
        self.pid, self.start, self.owner, self.accepted, self.claimed = pid, start, owner, accepted, claimed


def user(sock: _socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that connected, as the kernel noted them then. Raises OSError."""
    pid, uid, _ = CREDENTIALS.unpack(sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid


def identify(sock: _socket.socket, empty_since: float) -> Identity:
    """Return who connected after `empty_since` (seconds since boot). What /proc shows is of that process if it is alive
    afterwards (its pidfd) or, before Linux 6.5, older than the connection.
    """
    pid, uid = user(sock)
    accepted = time.clock_gettime(time.CLOCK_BOOTTIME)
    start, cgroup = _start(pid), cgroup_at(pid)
    if pid > 0:
        alive = _alive(sock)
        proven = start > 0 and (start / posix.sysconf("SC_CLK_TCK") < empty_since if alive is None else alive)
        if not proven:
            return Identity(0, 0, CgroupUser(uid, PASSED_ON if _passed_on(sock, pid, alive) else GONE), accepted, pid)
    return Identity(pid, start, CgroupUser(uid, cgroup), accepted, pid)


def pidfd(sock: _socket.socket) -> int | None:
    """Return a descriptor of the process that connected, None if the kernel gives none."""
    try:
        return sock.getsockopt(_socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return None


def _alive(sock: _socket.socket) -> bool | None:
    """Return whether the process that connected is alive, None if the kernel does not report it."""
    try:
        descriptor = sock.getsockopt(_socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return None if error.errno == _ENOPROTOOPT else False
    ended = _polled(descriptor, select.POLLIN)  # readable when the process has ended
    posix.close(descriptor)
    return not ended


def _passed_on(sock: _socket.socket, pid: int, alive: bool | None) -> bool:
    """Return whether another process holds the connection of one that has ended, also where /proc hides processes."""
    if alive is None:
        try:
            posix.kill(pid, 0)
        except OSError as error:
            alive = error.errno != _ESRCH
    return not alive and alive is not None and not _polled(sock.fileno(), 0)  # has its end, when nobody holds it


def _polled(descriptor: int, events: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(0))


def _start(pid: int) -> int:
    try:
        return int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def cgroup_at(pid: int) -> str:
    """Return the cgroup of the process that has a pid now, "" without a pid."""
    if pid <= 0:
        return ""
    try:
        return cgroup_of(_read(f"/proc/{pid}/cgroup").decode(errors="replace"))
    except OSError:
        return GONE


def cgroup_of(text: str) -> str:
    """Return the cgroup from the text of /proc/PID/cgroup; all below the slice of a login user is one."""
    unified = [line[3:] for line in text.split("\n") if line.startswith("0::")]
    path = unified[0] if unified and unified[0] != "/" else text.strip()
    parts = path.split("/")
    if len(parts) > 3 and parts[1] == "user.slice":
        path = "/".join(parts[:3])
    return path[:_MAX_CGROUP_BYTES]


def _read(path: str) -> bytes:
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(descriptor, 4096)
    finally:
        posix.close(descriptor)
