"""The connections of the HTTP server: bounded in number, in size, and in the time each may take (docs/http.md)."""

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

# Seconds: from the connection (handshake included) to the end of the first request's headers …
HEADER_TIMEOUT = 10.0
# … from there until the body is read and the answer is in the kernel's hands, against clients that do not read …
REQUEST_TIMEOUT = 20.0
# … and from there to the next request; Prometheus keeps its connection between scrapes, 15 to 120 s apart.
IDLE_TIMEOUT = 300.0
# Connections that are accepted before those that are open are served again.
_AT_ONCE = 128
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
# Answers up to this size go out in one call with their headers, copied; larger ones are sent from where they lie.
_SMALL = 64 * 1024
# What the kernel queues for a client that does not read. By itself it queues megabytes for each on the loopback device,
# charges them to the daemon's cgroup, and lets the other clients wait for it.
_UNREAD = 128 * 1024

Answer: TypeAlias = Callable[[Request], Reply | Awaitable[Reply]]

_PARAMETERS = HTTP1ConnectionParameters(max_header_size=MAX_HEADER_BYTES, max_body_size=MAX_BODY_BYTES)


class _Phase(dict[HTTP1ServerConnection, float]):
    """The connections in one phase with the time they entered it, the longest first; all may stay equally long."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self.timeout = timeout

    def longest(self) -> HTTP1ServerConnection:
        return next(iter(self))

    def used(self, now: float) -> float:
        """Return how much of the time allowed the longest one has used, from 0 to 1."""
        return (now - next(iter(self.values()))) / self.timeout


class Listener(TCPServer, HTTPServerConnectionDelegate):
    """Accepts connections and knows how long each may stay.

    A connection is fresh until the headers of its first request are complete, and then in its first request; after
    that answer it goes to and fro between idle and busy.
    """

    def __init__(self, answer: Answer, limit: int, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` is asked for each new connection; those that are open keep theirs."""
        super().__init__(max_buffer_size=2 * (MAX_HEADER_BYTES + MAX_BODY_BYTES), read_chunk_size=MAX_HEADER_BYTES)
        self.answer = answer
        self._limit, self._tls = limit, tls
        self._listening: list[socket.socket] = []
        self._waiting: list[socket.socket] = []  # those that connections could not be taken from
        self._refusals = Condition(log, logging.ERROR)
        self._fresh = _Phase(HEADER_TIMEOUT)
        self._first = _Phase(REQUEST_TIMEOUT)
        self._busy = _Phase(REQUEST_TIMEOUT)
        self._idle = _Phase(IDLE_TIMEOUT)
        self._phases = (self._fresh, self._first, self._busy, self._idle)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Take connections from these from now on. Tornado's own loop would spin when no descriptor is left."""
        self._waiting += sockets
        for sock in self._waiting:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)  # its connections have the same
        self._listening += self._waiting
        self.resume()

    def resume(self) -> None:
        """Look again at sockets whose connections could not be taken; they stay in the kernel's queue meanwhile."""
        loop = asyncio.get_running_loop()
        for sock in self._waiting:
            loop.add_reader(sock, self._accept, sock)
        self._waiting.clear()

    @property
    def rests(self) -> bool:
        """Whether nothing is under way: no connection waits for a request's end, no socket to be looked at again."""
        return not (self._fresh or self._first or self._busy or self._waiting)

    def stop(self) -> None:
        """Take no more connections."""
        for sock in self._listening:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._listening.clear()
        self._waiting.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refusals.failing("no connection can be accepted, open ones go on", error=error.strerror)
                asyncio.get_running_loop().remove_reader(listening)
                self._waiting.append(listening)
                return
            self._refusals.recovered("connections are accepted again")
            self.ssl_options = self._tls()
            self._handle_connection(connection, address)

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        """Take the connection in; a TLS handshake is still to come, in the time of the first headers."""
        if sum(map(len, self._phases)) >= self._limit:
            self._evict()
        connection = HTTP1ServerConnection(stream, _PARAMETERS, address[0])
        self._enter(connection, self._fresh)
        connection.start_serving(self)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Take note that the connection waits for a request, its first or the next after an answer."""
        assert isinstance(server_conn, HTTP1ServerConnection)
        if server_conn not in self._fresh:
            self._enter(server_conn, self._idle)
        return _Exchange(self, server_conn, request_conn)

    def request_begins(self, connection: HTTP1ServerConnection) -> None:
        """Take note that the headers of a request are complete."""
        self._enter(connection, self._first if connection in self._fresh else self._busy)

    def on_close(self, server_conn: object) -> None:
        """Forget the connection."""
        assert isinstance(server_conn, HTTP1ServerConnection)
        self._leave(server_conn)

    def close_overdue(self, now: float) -> None:
        """Close what has been in its phase for too long."""
        for phase in self._phases:
            while phase and phase.used(now) >= 1:
                self._close(phase.longest())

    async def close_all(self) -> None:
        """Close every connection."""
        for connection in [connection for phase in self._phases for connection in phase]:
            await connection.close()

    def _evict(self) -> None:
        """Make room by the one that used up most of its time, among those without a complete request if these hold
        more than half of the places: slow ones then push out each other, and never a scraper.
        """
        newcomers = (self._fresh, self._first)
        phases = newcomers if sum(map(len, newcomers)) > self._limit // 2 else self._phases
        now = asyncio.get_running_loop().time()
        self._close(max((phase for phase in phases if phase), key=lambda phase: phase.used(now)).longest())

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
    """Collects one request and writes its reply."""

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
            self._waiting = asyncio.ensure_future(self._write_later(reply, head_only))

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
        if self._server_conn.stream.closed():  # the client did not wait
            return
        small = len(reply.body) <= _SMALL and not head_only
        if not small:
            # The kernel must not wait for the headers' acknowledgement before it sends the body: measured, 10 ms.
            self._server_conn.stream.set_nodelay(True)
        self._connection.write_headers(start_line, headers, reply.body if small else None)
        if not small and not head_only:
            self._connection.write(reply.body)
        self._connection.finish()
