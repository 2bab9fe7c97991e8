"""Connections of the HTTP server, limited in number, size and time (docs/http.md)."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import TypeAlias

from tornado.http1connection import HTTP1ConnectionParameters, HTTP1ServerConnection
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream
from tornado.tcpserver import TCPServer

from gpugauge.logline import Condition
from gpugauge.web.messages import Reply, Request

log = logging.getLogger("gpugauge.server")

# From the connection, TLS handshake included, to the end of the first request's headers.
HEADER_TIMEOUT_SECONDS = 10.0
# From the end of the headers until the request body is read and the kernel has taken the reply. A client that does not
# read its reply exceeds it.
REQUEST_TIMEOUT_SECONDS = 20.0
# From a reply to the next request. Prometheus keeps its connection between scrapes, 15 to 120 s apart.
IDLE_TIMEOUT_SECONDS = 300.0
# After this many new connections the open ones are served again.
_MAX_ACCEPTS_PER_WAKEUP = 128
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
# A reply up to this size is copied and sent with its headers in one call; a larger one is sent without a copy.
_MAX_COPIED_REPLY_BYTES = 64 * 1024
# Send buffer of a connection. By default the kernel queues megabytes per client on the loopback device, charges them to
# the daemon's cgroup and delays other clients.
_SEND_BUFFER_BYTES = 128 * 1024

Answer: TypeAlias = Callable[[Request], Reply | Awaitable[Reply]]

_PARAMETERS = HTTP1ConnectionParameters(max_header_size=MAX_HEADER_BYTES, max_body_size=MAX_BODY_BYTES)


class _Phase(dict[HTTP1ServerConnection, float]):
    """Connections in one phase with the time of entry, in the order of entry. All have the same timeout."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self.timeout = timeout

    def oldest(self) -> HTTP1ServerConnection:
        return next(iter(self))

    def used_ratio(self, now: float) -> float:
        """Return the share of the timeout that the oldest connection has used."""
        return (now - next(iter(self.values()))) / self.timeout


class Listener(TCPServer, HTTPServerConnectionDelegate):
    """Accepts connections and closes those that exceed their timeout.

    A connection is fresh until the headers of its first request are complete, and in its first request until the reply.
    After that it alternates between idle and busy.
    """

    def __init__(self, answer: Answer, limit: int, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` is called for each new connection; open connections keep their context."""
        super().__init__(max_buffer_size=2 * (MAX_HEADER_BYTES + MAX_BODY_BYTES), read_chunk_size=MAX_HEADER_BYTES)
        self.answer = answer
        self._limit, self._tls = limit, tls
        self._listening: list[socket.socket] = []
        self._paused: list[socket.socket] = []  # listening sockets on which accept() failed
        self._refusals = Condition(log, logging.ERROR)
        self._fresh = _Phase(HEADER_TIMEOUT_SECONDS)
        self._first = _Phase(REQUEST_TIMEOUT_SECONDS)
        self._busy = _Phase(REQUEST_TIMEOUT_SECONDS)
        self._idle = _Phase(IDLE_TIMEOUT_SECONDS)
        self._phases = (self._fresh, self._first, self._busy, self._idle)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets. Replaces tornado's loop, which spins when no descriptor is left."""
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
        return not (self._fresh or self._first or self._busy or self._paused)

    def stop(self) -> None:
        """Close the listening sockets."""
        for sock in self._listening:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._listening.clear()
        self._paused.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTS_PER_WAKEUP):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refusals.failing("no connection can be accepted, open ones continue", error=error.strerror)
                asyncio.get_running_loop().remove_reader(listening)
                self._paused.append(listening)
                return
            self._refusals.recovered("connections are accepted again")
            self.ssl_options = self._tls()
            self._handle_connection(connection, address)

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        """Serve an accepted connection. Its TLS handshake follows, within the timeout of the first headers."""
        if sum(map(len, self._phases)) >= self._limit:
            self._evict()
        connection = HTTP1ServerConnection(stream, _PARAMETERS, address[0])
        self._enter(connection, self._fresh)
        connection.start_serving(self)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Record that the connection waits for its first or its next request."""
        assert isinstance(server_conn, HTTP1ServerConnection)
        if server_conn not in self._fresh:
            self._enter(server_conn, self._idle)
        return _Exchange(self, server_conn, request_conn)

    def request_begins(self, connection: HTTP1ServerConnection) -> None:
        """Record that the headers of a request are complete."""
        self._enter(connection, self._first if connection in self._fresh else self._busy)

    def on_close(self, server_conn: object) -> None:
        """Remove a closed connection."""
        assert isinstance(server_conn, HTTP1ServerConnection)
        self._leave(server_conn)

    def close_overdue(self, now: float) -> None:
        """Close the connections that have exceeded the timeout of their phase."""
        for phase in self._phases:
            while phase and phase.used_ratio(now) >= 1:
                self._close(phase.oldest())

    async def close_all(self) -> None:
        """Close every connection."""
        for connection in [connection for phase in self._phases for connection in phase]:
            await connection.close()

    def _evict(self) -> None:
        """Close the connection that has used the largest share of its timeout. If connections that have not completed a
        request are more than half of the limit, only they are considered: slow clients then evict each other and never
        a scraper.
        """
        unproven = (self._fresh, self._first)
        phases = unproven if sum(map(len, unproven)) > self._limit // 2 else self._phases
        now = asyncio.get_running_loop().time()
        self._close(max((phase for phase in phases if phase), key=lambda phase: phase.used_ratio(now)).oldest())

    def _close(self, connection: HTTP1ServerConnection) -> None:
        self._leave(connection)
        connection.stream.close()

    def _enter(self, connection: HTTP1ServerConnection, phase: _Phase) -> None:
        self._leave(connection)
        phase[connection] = asyncio.get_running_loop().time()

    def _leave(self, connection: HTTP1ServerConnection) -> None:
        for phase in self._phases:
            phase.pop(connection, None)


class _Exchange(HTTPMessageDelegate):
    """Reads one request and writes its reply."""

    def __init__(self, listener: Listener, server_conn: HTTP1ServerConnection, request_conn: HTTPConnection) -> None:
        self._listener = listener
        self._server_conn = server_conn
        self._connection = request_conn
        self._body = bytearray()

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, RequestStartLine)
        self._start_line = start_line
        self._headers = headers
        self._listener.request_begins(self._server_conn)

    def data_received(self, chunk: bytes) -> None:
        self._body += chunk

    def finish(self) -> None:
        path, _, query = self._start_line.path.partition("?")
        request = Request(
            self._start_line.method,
            path,
            query,
            self._headers,
            bytes(self._body),
            str(self._server_conn.context),
            self._certificate(),
        )
        head_only = request.method == "HEAD"
        reply = self._listener.answer(request)
        if isinstance(reply, Reply):
            self._write(reply, head_only)
        else:
            self._task = asyncio.ensure_future(self._write_later(reply, head_only))  # the loop keeps weak references

    def on_connection_close(self) -> None:
        self._body.clear()

    def _certificate(self) -> Mapping[str, object] | None:
        connection = self._server_conn.stream.socket
        return (connection.getpeercert() or None) if isinstance(connection, ssl.SSLSocket) else None

    async def _write_later(self, reply: Awaitable[Reply], head_only: bool) -> None:
        self._write(await reply, head_only)

    def _write(self, reply: Reply, head_only: bool) -> None:
        headers = HTTPHeaders(
            {
                "Content-Type": reply.content_type,
                "Content-Length": str(len(reply.body)),
                "Date": formatdate(usegmt=True),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Resource-Policy": "same-origin",
            }
        )
        for name, value in reply.headers:
            headers[name] = value
        start_line = ResponseStartLine("HTTP/1.1", reply.status, HTTPStatus(reply.status).phrase)
        if self._server_conn.stream.closed():  # by the client
            return
        small = len(reply.body) <= _MAX_COPIED_REPLY_BYTES and not head_only
        if not small:
            # Without it the kernel sends the body only after the acknowledgement of the headers: 10 ms as measured.
            self._server_conn.stream.set_nodelay(True)
        self._connection.write_headers(start_line, headers, reply.body if small else None)
        if not small and not head_only:
            self._connection.write(reply.body)
        self._connection.finish()
