"""The connection to the daemon: never waits, and finds a daemon that comes back."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

SECOND = 1_000_000_000  # nanoseconds

# A connection that lasted this long was welcome: when it breaks, the daemon has gone, and its successor is looked for
# at every publication (a failing connect costs 10 µs). One that breaks sooner was turned away: then the pauses grow.
_WELCOME = 10 * SECOND
_LONGEST_PAUSE = 30 * SECOND

# Bytes, of which Linux grants twice as many: what waits for a daemon that stands still. Some machines grant megabytes
# by default, and what waited is old news when it is read.
QUEUE = 106_496


class Client:
    """One seqpacket connection. Times are perf_counter_ns; no method waits, and none raises OSError."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._socket: socket.socket | None = None
        self._inode = 0
        self._opened = 0
        self._pause = SECOND
        self._not_before = 0

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as the last message could tell."""
        return self._socket is not None

    def connect(self, now: int, hello: Callable[[], tuple[bytes, int | None]]) -> bool:
        """Return whether there is a connection, after trying to open one that begins with the datagram of `hello`, and
        with the file descriptor that it names.
        """
        if self._socket is not None:
            return True
        if now < self._not_before:
            return False
        for path in self._paths:
            candidate = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUE)
                candidate.connect(path)
                data, descriptor = hello()
                socket.send_fds(candidate, [data], [] if descriptor is None else [descriptor], socket.MSG_NOSIGNAL)
            except OSError:
                candidate.close()
                continue
            except Exception:
                candidate.close()
                raise
            self._socket = candidate
            self._inode = os.fstat(candidate.fileno()).st_ino
            self._opened = now
            return True
        return False

    def send(self, now: int, data: bytes) -> bool:
        """Send one datagram. False means that the connection is gone; a daemon that does not read loses the message."""
        if not self._owned() or self._socket is None:
            return False
        try:
            self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # every message holds all counts: the next one makes up for this
        except OSError:
            self.close()
            if now - self._opened >= _WELCOME:
                self._pause = SECOND
            else:
                self._not_before = now + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return False
        return True

    def close(self) -> None:
        """Close the connection; in a forked child this leaves the parent's open."""
        if self._owned() and self._socket is not None:
            self._socket.close()
            self._socket = None

    def _owned(self) -> bool:
        """Whether our descriptor is still ours: a program that closes all of them gets the same numbers again."""
        if self._socket is None:
            return False
        try:
            if os.fstat(self._socket.fileno()).st_ino == self._inode:
                return True
        except OSError:
            pass
        self._socket.detach()
        self._socket = None
        return False
