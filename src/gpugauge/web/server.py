"""The HTTP server: a thread with an event loop of its own, a table of routes, bounded connections (docs/http.md)."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from gpugauge.logline import fields
from gpugauge.web.connections import Listener
from gpugauge.web.listen import ListenError, bind
from gpugauge.web.messages import Handler, Reply, Request, Route, sentence

__all__ = ["Access", "Handler", "Reply", "Request", "Route", "Server", "sentence"]

log = logging.getLogger(__name__)

# Seconds between two looks at connections that take too long, and how many of them while none is under way.
_SWEEP_INTERVAL = 1.0
_RESTING = 5
# Descriptors that the rest of the daemon needs, however many connections are allowed.
_RESERVED_DESCRIPTORS = 256
_FAILED = sentence(500, "this request failed, the log of the daemon says why")


class Access(Protocol):
    """Who may connect and how; asked for every connection and request, so that what it says may change."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What turns a new connection into HTTPS; None for plain HTTP."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers for every reply, stronger than the reply's own."""

    def refusal(self, request: Request) -> Reply | Awaitable[Reply | None] | None:
        """Return the reply that refuses the request, or None to let it in; what takes time is awaited."""


class Server:
    """Serves `routes` on every address to whom `access` lets in: without it, to everybody, in plain HTTP.

    `addresses` are (host, port), where no host means all interfaces.
    """

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
        self._answer = _Answerer(routes, access)
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

    @property
    def serving(self) -> bool:
        """Whether the thread that answers runs."""
        return self._thread is not None and self._thread.is_alive()

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
        access = self._access
        listener = Listener(self._answer, self._max_connections, lambda: access.tls if access else None)
        listener.add_sockets(self._sockets)
        started.set()
        stopping = asyncio.ensure_future(self._stopping.wait())
        while not stopping.done():
            listener.close_overdue(self._loop.time())
            listener.resume()
            await asyncio.wait([stopping], timeout=_SWEEP_INTERVAL * (_RESTING if listener.rests else 1))
        listener.stop()
        await listener.close_all()

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


class _Answerer:
    """From a request to its reply; the one place that turns what a handler raises into a 500."""

    def __init__(self, routes: Mapping[str, Route], access: Access | None) -> None:
        self._routes = dict(routes)
        self._access = access

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        """Return the reply; only one that takes time is awaited, so that a scrape is answered at once."""
        try:
            refused = self._access.refusal(request) if self._access else None
            answer = self._dispatch(request) if refused is None else refused
        except Exception:
            log.exception("a request failed", extra=fields(path=request.path))
            answer = _FAILED
        return self._finished(answer) if isinstance(answer, Reply) else self._later(request, answer)

    async def _later(self, request: Request, coming: Awaitable[Reply | None]) -> Reply:
        try:
            answer = await coming
            if answer is None:  # let in
                now = self._dispatch(request)
                answer = now if isinstance(now, Reply) else await now
        except Exception:
            log.exception("a request failed", extra=fields(path=request.path))
            answer = _FAILED
        return self._finished(answer)

    def _finished(self, reply: Reply) -> Reply:
        more = self._access.headers if self._access else ()
        return reply._replace(headers=(*reply.headers, *more)) if more else reply

    def _dispatch(self, request: Request) -> Reply | Awaitable[Reply]:
        route = self._routes.get(request.path)
        if route is None:
            return sentence(404, "nothing here; / lists what there is")
        if request.method not in route.methods:
            allowed = ", ".join(route.methods)
            return sentence(405, f"only {allowed} here")._replace(headers=(("Allow", allowed),))
        return route.handler(request)
