"""The HTTP server: a thread with an event loop of its own, a table of routes, bounded connections (docs/http.md)."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

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

from gpugauge.listen import ListenError, bind

log = logging.getLogger(__name__)

# Seconds: from the connection (handshake included) to the end of the first request's headers …
HEADER_TIMEOUT = 10.0
# … from there until the body is read and the answer is in the kernel's hands, against clients that do not read …
REQUEST_TIMEOUT = 20.0
# … and from there to the next request; Prometheus keeps its connection between scrapes, 15 to 120 s apart.
IDLE_TIMEOUT = 300.0
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024

_PARAMETERS = HTTP1ConnectionParameters(max_header_size=MAX_HEADER_BYTES, max_body_size=MAX_BODY_BYTES)
_SWEEP_INTERVAL = 1.0
# Descriptors that the rest of the daemon needs, however many connections are allowed.
_RESERVED_DESCRIPTORS = 256


class Request(NamedTuple):
    """A complete request; `headers` look up without regard to case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    remote: str


class Reply(NamedTuple):
    """What goes back; Content-Length, Date and the protective headers are added on the way out."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Handler: TypeAlias = Callable[[Request], Reply]


class Route(NamedTuple):
    """What answers one path. Handlers run in the server's thread and must not block."""

    handler: Handler
    methods: tuple[str, ...] = ("GET", "HEAD")


def sentence(status: int, text: str) -> Reply:
    """Return a plain text reply of one line."""
    return Reply(status, text.encode() + b"\n")


class Server:
    """Serves `routes` on every address. `authenticate` returns the reply that refuses a request, or None to let it in.

    `addresses` are (host, port), where no host means all interfaces; `tls` turns every connection into HTTPS.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        routes: Mapping[str, Route],
        *,
        max_connections: int = 512,
        authenticate: Callable[[Request], Reply | None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            max_connections = max(8, min(max_connections, descriptors - _RESERVED_DESCRIPTORS))
        self._requested = tuple(addresses)
        self._max_connections = max_connections
        self._tls = tls
        self._answer = _Answerer(routes, authenticate)
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self.addresses: tuple[tuple[str, int], ...] = ()
        """(host, port) as bound, known after `start`: a requested port 0 is a real one here."""

    def start(self) -> None:
        """Bind all addresses and serve; raises ListenError, and then nothing is left open."""
        try:
            for host, port in self._requested:
                for sock in bind(host, port):
                    sock.setblocking(False)
                    self._sockets.append(sock)
        except ListenError:
            self._close_sockets()
            raise
        self.addresses = tuple(sock.getsockname()[:2] for sock in self._sockets)
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="http-server", daemon=True
        )
        self._thread.start()
        started.wait()

    def stop(self, timeout: float = 1.0) -> None:
        """Close everything and wait for the thread, `timeout` seconds at most; safe to call twice or before start."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout)
        self._thread = None

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        listener = _Listener(self._answer, self._max_connections, self._tls)
        listener.add_sockets(self._sockets)
        started.set()
        stopping = asyncio.ensure_future(self._stopping.wait())
        while not stopping.done():
            listener.close_overdue(self._loop.time())
            await asyncio.wait([stopping], timeout=_SWEEP_INTERVAL)
        listener.stop()
        await listener.close_all()

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


class _Answerer:
    """From a request to its reply; the one place that turns what a handler raises into a 500."""

    def __init__(self, routes: Mapping[str, Route], authenticate: Callable[[Request], Reply | None] | None) -> None:
        self._routes = dict(routes)
        self._authenticate = authenticate

    def __call__(self, request: Request) -> Reply:
        try:
            refused = self._authenticate(request) if self._authenticate else None
            return refused or self._dispatch(request)
        except Exception:
            log.exception("a request failed", extra={"fields": {"path": request.path}})
            return sentence(500, "this request failed, the log of the daemon says why")

    def _dispatch(self, request: Request) -> Reply:
        route = self._routes.get(request.path)
        if route is None:
            return sentence(404, "nothing here; / lists what there is")
        if request.method not in route.methods:
            allowed = ", ".join(route.methods)
            return sentence(405, f"only {allowed} here")._replace(headers=(("Allow", allowed),))
        return route.handler(request)


# --- connections ---


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


class _Listener(TCPServer, HTTPServerConnectionDelegate):
    """Accepts connections and knows how long each may stay.

    A connection is fresh until the headers of its first request are complete, and then in its first request; after
    that answer it goes to and fro between idle and busy.
    """

    def __init__(self, answer: Callable[[Request], Reply], limit: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(
            ssl_options=tls, max_buffer_size=2 * (MAX_HEADER_BYTES + MAX_BODY_BYTES), read_chunk_size=MAX_HEADER_BYTES
        )
        self.answer = answer
        self._limit = limit
        self._fresh = _Phase(HEADER_TIMEOUT)
        self._first = _Phase(REQUEST_TIMEOUT)
        self._busy = _Phase(REQUEST_TIMEOUT)
        self._idle = _Phase(IDLE_TIMEOUT)
        self._phases = (self._fresh, self._first, self._busy, self._idle)

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
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
        assert isinstance(server_conn, HTTP1ServerConnection)
        self._leave(server_conn)

    def close_overdue(self, now: float) -> None:
        """Close what has been in its phase for too long."""
        for phase in self._phases:
            while phase and phase.used(now) >= 1:
                self._close(phase.longest())

    async def close_all(self) -> None:
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

    def __init__(self, listener: _Listener, server_conn: HTTP1ServerConnection, request_conn: HTTPConnection) -> None:
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
            self._start_line.method, path, query, self._headers, bytes(self._body), str(self._server_conn.context)
        )
        self._write(self._listener.answer(request), head_only=request.method == "HEAD")

    def on_connection_close(self) -> None:
        self._body.clear()

    def _write(self, reply: Reply, head_only: bool) -> None:
        headers = HTTPHeaders(
            {
                "Content-Type": reply.content_type,
                "Content-Length": str(len(reply.body)),
                "Date": formatdate(usegmt=True),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
            }
        )
        for name, value in reply.headers:
            headers.add(name, value)
        start_line = ResponseStartLine("HTTP/1.1", reply.status, HTTPStatus(reply.status).phrase)
        # Headers and body apart, so that the body is sent from where it lies and not copied for each slow reader. The
        # kernel must not wait for the headers' acknowledgement in between: measured, that costs 10 ms.
        self._server_conn.stream.set_nodelay(True)
        self._connection.write_headers(start_line, headers)
        if not head_only:
            self._connection.write(reply.body)
        self._connection.finish()
