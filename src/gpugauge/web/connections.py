"""Connections of the HTTP server, limited in number, size and time (docs/http.md)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable

from tornado.iostream import IOStream, SSLIOStream

from gpugauge.base.logline import Condition
from gpugauge.web.http1 import MAX_BODY_BYTES, MAX_HEADER_BYTES, Connection
from gpugauge.web.messages import Client, Handler, Reply
from gpugauge.web.prefixes import prefix

log = logging.getLogger("gpugauge.server")

# From the connection, TLS handshake included, to the end of the first request's headers.
HEADER_TIMEOUT_SECONDS = 10.0
# From the end of the headers until the kernel has taken the reply, which a client has to read.
REQUEST_TIMEOUT_SECONDS = 20.0
# From a reply to the next request. Prometheus keeps its connection between scrapes, 15 to 120 s apart.
IDLE_TIMEOUT_SECONDS = 300.0
# From the last reply until the client has closed the connection.
_CLOSING_TIMEOUT_SECONDS = 2.0
# One of so many connections is for newcomers: those that have not yet logged in or read a whole reply.
_NEWCOMERS_DIVISOR = 8
# After accepting one of so many connections of the limit, the open ones are served again: half as many as newcomers can
# be, so that none of these is displaced before its request is read.
_ACCEPTS_DIVISOR = 16
# Send buffer of a connection. By default the kernel queues megabytes per client on the loopback device, charges them to
# the daemon's cgroup and delays other clients.
_SEND_BUFFER_BYTES = 128 * 1024
# Errors of a connection that ended before it was accepted (accept(2)), EPERM by a rule of a firewall. They cost this
# connection alone; others are those of the listening socket, or of the whole machine.
_GONE = {
    *(errno.ECONNABORTED, errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET),
    *(errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.EPERM, errno.ETIMEDOUT, errno.EINTR),
}


class _Phase(dict[Connection, float]):
    """Connections in one phase with the time of entry, in the order of entry. All have the same timeout."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self.timeout = timeout

    def oldest(self) -> Connection:
        return next(iter(self))


class _Newcomers(dict[str, dict[Connection, None]]):
    """Connections by the prefix of their address, in the order in which they were added."""

    def add(self, connection: Connection) -> None:
        self.setdefault(prefix(connection.remote), {})[connection] = None

    def remove(self, connection: Connection) -> None:
        of_prefix = self.get(prefix(connection.remote), {})
        of_prefix.pop(connection, None)
        if not of_prefix:
            self.pop(prefix(connection.remote), None)

    def first_of_largest(self) -> Connection:
        return next(iter(self[max(self, key=lambda name: len(self[name]))]))


def _stream(connection: socket.socket, tls: ssl.SSLContext | None) -> IOStream:
    """Return the stream of an accepted connection. Raises OSError, and then the connection is closed."""
    limits = {"max_buffer_size": 2 * (MAX_HEADER_BYTES + MAX_BODY_BYTES), "read_chunk_size": MAX_HEADER_BYTES}
    if tls is None:
        return IOStream(connection, **limits)
    try:
        wrapped = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    except OSError:
        connection.close()
        raise
    return SSLIOStream(wrapped, **limits)


class Listener:
    """Accepts connections and closes those that exceed their timeout. A newcomer, which others may displace, has
    neither logged in nor, where nobody has to, read a whole reply; it is fresh until the headers are complete.
    """

    def __init__(self, answer: Handler, limit: int, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` is called for each new connection; open connections keep their context."""
        self.answer = answer
        self._limit, self._tls = limit, tls
        self._listening: list[socket.socket] = []
        self._paused: list[socket.socket] = []  # listening sockets on which accept() failed
        self._refusals = Condition(log, logging.ERROR)
        self._fresh = _Phase(HEADER_TIMEOUT_SECONDS)
        self._first = _Phase(REQUEST_TIMEOUT_SECONDS)
        self._busy = _Phase(REQUEST_TIMEOUT_SECONDS)
        self._idle = _Phase(IDLE_TIMEOUT_SECONDS)
        self._closing = _Phase(_CLOSING_TIMEOUT_SECONDS)
        self._phases = (self._fresh, self._first, self._busy, self._idle, self._closing)
        self._newcomers = _Newcomers()
        self._admitted: dict[Connection, int] = {}  # with the ordinal of their admission
        self._admitted_of: Counter[str] = Counter()
        self._numbers = itertools.count()

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets."""
        self._paused += sockets
        for sock in self._paused:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)  # inherited by its connections
        self._listening += self._paused
        self.resume()

    def resume(self) -> None:
        """Accept again on sockets on which accept() failed. Their connections stay in the kernel's queue meanwhile."""
        loop = asyncio.get_running_loop()
        for sock in self._paused:
            loop.add_reader(sock, self._accept, sock)
        self._paused.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress and no socket is paused."""
        return not (self._fresh or self._first or self._busy or self._closing or self._paused)

    def stop(self) -> None:
        """Close the listening sockets."""
        for sock in self._listening:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._listening.clear()
        self._paused.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(max(1, self._limit // _ACCEPTS_DIVISOR)):
            try:
                connection, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._refusals.failing("no connection can be accepted, open ones continue", error=error.strerror)
                asyncio.get_running_loop().remove_reader(listening)
                self._paused.append(listening)
                return
            self._refusals.recovered("connections are accepted again")
            with contextlib.suppress(OSError):  # the client has gone before its TLS handshake
                self.serve(_stream(connection, self._tls()), address[0])

    def serve(self, stream: IOStream, remote: str) -> None:
        """Serve an accepted connection. Its TLS handshake follows, within the timeout of the first headers."""
        if sum(map(len, self._phases)) >= self._limit:
            self._evict()
        connection = Connection(stream, remote, self)
        self._enter(connection, self._fresh)
        connection.start()

    def request_begins(self, connection: Connection) -> None:
        """Record that the headers of a request are complete."""
        self._enter(connection, self._busy if connection in self._admitted else self._first)

    def reply_pending(self, connection: Connection) -> None:
        """Keep a connection whose login is checked: few of them wait at a time, and none of them can be quicker."""
        self._newcomers.remove(connection)

    def reply_begins(self, connection: Connection, reply: Reply) -> None:
        """Admit the connection of a known client before its reply, which newcomers then cannot cut off."""
        if reply.client is Client.KNOWN:
            self._admit(connection, self._busy)
        elif connection in self._first:
            self._newcomers.add(connection)

    def request_ends(self, connection: Connection, reply: Reply) -> None:
        """Record that the connection waits for its next request. One that has read a whole reply is admitted."""
        if connection in self._admitted or reply.client is not Client.REFUSED:
            self._admit(connection, self._idle)
        else:
            self._enter(connection, self._fresh)

    def last_reply_sent(self, connection: Connection) -> None:
        """Record that the client is expected to close the connection."""
        self._enter(connection, self._closing)

    def on_close(self, connection: Connection) -> None:
        """Remove a closed connection."""
        for phase in self._phases:
            phase.pop(connection, None)
        self._newcomers.remove(connection)
        if self._admitted.pop(connection, None) is not None:
            self._admitted_of[prefix(connection.remote)] -= 1
            self._admitted_of += Counter()  # drops the zeros

    def close_overdue(self, now: float) -> None:
        """Close the connections that have exceeded the timeout of their phase."""
        for phase in self._phases:
            while phase and now - next(iter(phase.values())) >= phase.timeout:
                self._close(phase.oldest())

    async def close_all(self) -> None:
        """Close every connection."""
        connections = [connection for phase in self._phases for connection in phase]
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed()

    def _admit(self, connection: Connection, phase: _Phase) -> None:
        """Rank the connection above newcomers; if there are too many, close one that waits, of the largest prefix."""
        self._enter(connection, phase)
        if connection in self._admitted:
            return
        self._newcomers.remove(connection)
        self._admitted[connection] = next(self._numbers)
        self._admitted_of[prefix(connection.remote)] += 1
        if len(self._admitted) > self._limit - max(1, self._limit // _NEWCOMERS_DIVISOR) and self._idle:
            self._close(max(self._idle, key=lambda c: (self._admitted_of[prefix(c.remote)], self._admitted[c])))

    def _evict(self) -> None:
        """Close a newcomer: of the prefix with the most, the slowest. Without newcomers, the one that waits longest."""
        victim = self._newcomers.first_of_largest() if self._newcomers else None
        self._close(victim or next(phase.oldest() for phase in reversed(self._phases) if phase))

    def _close(self, connection: Connection) -> None:
        self.on_close(connection)
        connection.close()

    def _enter(self, connection: Connection, phase: _Phase) -> None:
        for other in self._phases:
            other.pop(connection, None)
        phase[connection] = asyncio.get_running_loop().time()
        if connection not in self._admitted:
            self._newcomers.remove(connection)
            self._newcomers.add(connection)
