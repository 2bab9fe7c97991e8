"""What is attacked, and by whom: the sockets of the daemon, a folder, and the user."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpugauge.wire import messages as wire

_libc = ctypes.CDLL(None, use_errno=True)
_SET_DUMPABLE = 4  # prctl(2)


class Target(NamedTuple):
    """The daemon's sockets. `uid` is the attacker; the users after it are his as well, as by /etc/subuid."""

    hook: str
    port: int
    folder: Path
    uid: int


# Called as root when everything is imported, to prepare what a user of another machine has. Returns what the user does.
Attack = Callable[[Target], Callable[[], object]]


def become(uid: int) -> None:
    """Become a user without rights, as a login does; /proc/self then belongs to the user."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def connect(path: str) -> socket.socket:
    """Return a connection to the hook's socket. Raises OSError."""
    hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hook.settimeout(5)
    hook.connect(path)
    return hook


def session() -> str:
    """Return a name for a session."""
    return os.urandom(16).hex()


def hello(name: str) -> bytes:
    """Return the first message of this process."""
    return wire.encode(wire.Hello(name, 1, os.getpid()))


def child(act: Callable[[], object], uid: int | None = None) -> int:
    """Run `act` in a forked process, of another user if given, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if uid is not None:
            become(uid)
        with contextlib.suppress(OSError):
            act()
    finally:
        os._exit(0)
