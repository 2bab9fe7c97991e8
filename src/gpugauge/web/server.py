"""The HTTP server: a thread with its own event loop, a table of routes, limited connections (docs/http.md)."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import threading
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Protocol

from gpugauge.base.guard import Guard
from gpugauge.base.logline import fields
from gpugauge.web.connections import Listener
from gpugauge.web.listen import ListenError, bind
from gpugauge.web.messages import Client, Handler, Reply, Request, Route, sentence

__all__ = ["Access", "Handler", "Reply", "Request", "Route", "Server", "sentence"]

log = logging.getLogger(__name__)

# Interval of the check for overdue connections while a request is in progress; while none is, it is longer by a factor.
_SWEEP_SECONDS = 1.0
_IDLE_SWEEP_FACTOR = 5
# Descriptors that the rest of the daemon needs; connections may use the others.
_RESERVED_DESCRIPTORS = 256
_FAILED = sentence(500, "the request failed; the log of the daemon has the error")


class Access(Protocol):
    """Access control. It is consulted for every connection and request, so that it may change at run time."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """TLS context of new connections; None for plain HTTP."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of every reply; they override the reply's own."""

    @property
    def identifies(self) -> bool:
        """Whether a client that is not refused has proven its identity."""

    def refusal(self, request: Request) -> Reply | Awaitable[Reply | None] | None:
        """Return the reply that refuses the request, or None to allow it; a slow check returns an awaitable."""


class Server:
    """Serves `routes` on every address (host, port); `access` controls who may connect, without it everyone may."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        routes: Mapping[str, Route],
        *,
        max_connections: int = 512,
        access: Access | None = None,
    ) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            max_connections = max(8, min(max_connections, descriptors - _RESERVED_DESCRIPTORS))
        self._requested = tuple(addresses)
        self._max_connections = max_connections
        self._access = access
        self._answer = _Dispatcher(routes, access)
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._guard = Guard("http-server")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self.addresses: tuple[tuple[str, int], ...] = ()
        """(host, port) as bound, set by `start`: a requested port 0 is replaced by the real one."""

    def start(self) -> None:
        """Bind all addresses and start the thread. Raises ListenError; then no socket stays open."""
        try:
            for host, port in self._requested:
                for sock in bind(host, port):
                    sock.setblocking(False)
                    self._sockets.append(sock)
        except ListenError:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()
            raise
        self.addresses = tuple(sock.getsockname()[:2] for sock in self._sockets)
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="http-server", daemon=True
        )
        self._thread.start()
        started.wait()

    @property
    def serving(self) -> bool:
        """Whether the server's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout: float = 1.0) -> None:
        """Close all connections and wait up to `timeout` seconds for the thread. Safe to call twice or before start."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout)
        self._thread = None

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        access = self._access
        listener = Listener(self._answer, self._max_connections, lambda: access.tls if access else None)
        listener.add_sockets(self._sockets)
        started.set()
        stopping = asyncio.ensure_future(self._stopping.wait())
        while not stopping.done():
            self._guard.run(partial(listener.close_overdue, self._loop.time()), listener.resume)
            await asyncio.wait([stopping], timeout=_SWEEP_SECONDS * (_IDLE_SWEEP_FACTOR if listener.is_idle else 1))
        listener.stop()
        await listener.close_all()


class _Dispatcher:
    """Returns the reply to a request. Any exception of a handler becomes a 500 here."""

    def __init__(self, routes: Mapping[str, Route], access: Access | None) -> None:
        self._routes = dict(routes)
        self._access = access

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        """Return the reply, or an awaitable only if the handler waits, so that a scrape is answered at once."""
        try:
            refused = self._access.refusal(request) if self._access else None
            if isinstance(refused, Reply):
                return self._finished(refused, Client.REFUSED)
            answer = self._dispatch(request) if refused is None else refused
        except Exception:
            log.exception("a request failed", extra=fields(path=request.path))
            return self._finished(_FAILED, Client.REFUSED)
        return self._admitted(answer) if isinstance(answer, Reply) else self._later(request, answer, refused is None)

    async def _later(self, request: Request, pending: Awaitable[Reply | None], admitted: bool) -> Reply:
        try:
            answer = await pending
            if answer is not None:
                return self._admitted(answer) if admitted else self._finished(answer, Client.REFUSED)
            reply = self._dispatch(request)
            return self._admitted(reply if isinstance(reply, Reply) else await reply)
        except Exception:
            log.exception("a request failed", extra=fields(path=request.path))
            return self._finished(_FAILED, Client.REFUSED)

    def _admitted(self, reply: Reply) -> Reply:
        identified = self._access is not None and self._access.identifies
        return self._finished(reply, Client.KNOWN if identified else Client.ANYBODY)

    def _finished(self, reply: Reply, client: Client) -> Reply:
        more = self._access.headers if self._access else ()
        return reply._replace(headers=(*reply.headers, *more), client=client)

    def _dispatch(self, request: Request) -> Reply | Awaitable[Reply]:
        route = self._routes.get(request.path)
        if route is None:
            return sentence(404, "not found; the page at / links to the endpoints")
        if request.method not in route.methods:
            allowed = ", ".join(route.methods)
            return sentence(405, f"allowed methods: {allowed}")._replace(headers=(("Allow", allowed),))
        return route.handler(request)
