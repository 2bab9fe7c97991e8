"""The connection to the daemon: never waits, and finds a daemon that comes back."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

SECOND = 1_000_000_000  # nanoseconds

# A connection that lasted this long was welcome: when it breaks, the daemon has gone, and its successor is looked for
# at every publication (a failing connect costs 10 µs). One that breaks sooner was turned away: then the pauses grow.
_WELCOME = 10 * SECOND
_LONGEST_PAUSE = 30 * SECOND


class Client:
    """One seqpacket connection. Times are perf_counter_ns; no method waits, and none raises OSError."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._socket: socket.socket | None = None
        self._opened = 0
        self._pause = SECOND
        self._not_before = 0

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as the last message could tell."""
        return self._socket is not None

    def connect(self, now: int, hello: Callable[[], bytes]) -> bool:
        """Return whether there is a connection, after trying to open one that begins with the datagram of `hello`."""
        if self._socket is not None:
            return True
        if now < self._not_before:
            return False
        for path in self._paths:
            candidate = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                candidate.connect(path)
                candidate.send(hello(), socket.MSG_NOSIGNAL)
            except OSError:
                candidate.close()
                continue
            except Exception:
                candidate.close()
                raise
            self._socket = candidate
            self._opened = now
            return True
        return False

    def send(self, now: int, data: bytes) -> bool:
        """Send one datagram. False means that the connection is gone; a daemon that does not read loses the message."""
        if self._socket is None:
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
        if self._socket is not None:
            self._socket.close()
            self._socket = None
