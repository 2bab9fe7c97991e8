"""The connection to the daemon. It never waits, and it is opened again after a restart of the daemon."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Sequence

from gpugauge.hook.counts.clock import NS_PER_SECOND
from gpugauge.hook.facts import process as facts
from gpugauge.hook.state import TrainingState
from gpugauge.wire import messages as wire

# A connection that lasted this long was accepted: when it breaks, the daemon has ended, and every publication tries to
# connect (a failing connect costs 10 µs). A connection that breaks sooner was rejected: the pauses grow.
_ACCEPTED_AFTER_NS = 10 * NS_PER_SECOND
_RETRY_PAUSE_MAX_NS = 30 * NS_PER_SECOND

# The queue of messages for a daemon that does not read; Linux grants twice as many bytes. The default of some machines
# is megabytes, and messages that wait so long are out of date when they are read.
SEND_BUFFER_BYTES = 106_496


class Client:
    """One seqpacket connection. Times are perf_counter_ns; no method waits, and none raises OSError."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._socket: socket.socket | None = None
        self._inode = 0
        self._opened = 0
        self._pause = NS_PER_SECOND
        self._not_before = 0

    @property
    def connected(self) -> bool:
        """Whether there was a connection at the last message."""
        return self._socket is not None

    def connect(self, now: int, hello: Callable[[], tuple[bytes, int | None]]) -> bool:
        """Return whether there is a connection; try to open one if not. `hello` returns the first datagram and the
        file descriptor to send with it.
        """
        if self._socket is not None:
            return True
        if now < self._not_before:
            return False
        for path in self._paths:
            candidate = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                candidate.connect(path)
                data, descriptor = hello()
                self._greet(candidate, data, descriptor)
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

    @staticmethod
    def _greet(candidate: socket.socket, data: bytes, descriptor: int | None) -> None:
        """Send the first datagram; without the record to a daemon that accepts no descriptors (Linux 6.16)."""
        try:
            socket.send_fds(candidate, [data], [] if descriptor is None else [descriptor], socket.MSG_NOSIGNAL)
        except PermissionError:
            candidate.send(data, socket.MSG_NOSIGNAL)

    def send(self, now: int, data: bytes) -> bool:
        """Send one datagram; return False if the connection has broken. A full queue drops the message."""
        if not self._owned() or self._socket is None:
            return False
        try:
            self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # counts are cumulative: the next message has them all
        except OSError:
            self.close()
            if now - self._opened >= _ACCEPTED_AFTER_NS:
                self._pause = NS_PER_SECOND
            else:
                self._not_before = now + self._pause
                self._pause = min(2 * self._pause, _RETRY_PAUSE_MAX_NS)
            return False
        return True

    def close(self) -> None:
        """Close the connection. In a forked child the connection of the parent stays open."""
        if self._owned() and self._socket is not None:
            self._socket.close()
            self._socket = None

    def leave(self) -> None:
        """Leave the connection open until the process ends."""
        if self._owned() and self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _owned(self) -> bool:
        """Return whether the descriptor is still this socket: a program can close it, and then its number is reused."""
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


class Publisher:
    """One session. `sequence` is the number of snapshots that were sent."""

    def __init__(self, client: Client, state: TrainingState) -> None:
        self._client, self._state = client, state
        self._session = uuid.uuid4().hex
        self._hello: wire.Hello | None = None
        self.sequence = 0

    def publish(self, now: int, errors: int) -> None:
        """Send a snapshot, if a daemon is connected or can be. `errors` are those of the hook itself."""
        for _ in range(2):  # the second time to a new daemon in the place of one that has ended
            if not self._client.connect(now, self._greeting) or self._client.send(now, self._snapshot(now, errors)):
                break

    def send_end(self, now: int, reason: str) -> None:
        """Send the last message, with the reason for the end of the process."""
        self._client.send(now, wire.encode(wire.Bye(self._session, self.sequence + 1, reason)))

    def _greeting(self) -> tuple[bytes, int | None]:
        """Return the datagram of hello, and the descriptor of the shared record."""
        if self._hello is None:
            self._hello = facts.hello(self._session)
            self._state.record.open()
        return wire.encode(self._hello), self._state.record.descriptor

    def _snapshot(self, now: int, errors: int) -> bytes:
        snapshot = self._state.snapshot(self._session, self.sequence + 1, errors, now)
        self.sequence += 1
        return wire.encode(snapshot)
