"""An HTTP server in the process of the test, and its clients."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gpugauge.exposition.render import Exposition
from gpugauge.metric import Family, Table
from gpugauge.snapshot import Section, Snapshot
from gpugauge.web.routes import standard_routes
from gpugauge.web.server import Access, Reply, Request, Route, Server

LOCAL = ("127.0.0.1", 0)
BUILD = Table("version").gauge("gpugauge_build_info", "Build.", id)
SNAPSHOT = Snapshot(0.0, time.monotonic(), (Section("exporter", (Family(BUILD, ((("1",), 1),)),)),))


def routes(not_ready: str | None = None, large: int = 0) -> dict[str, Route]:
    exposition = Exposition(stale_after=3600)
    exposition.publish(SNAPSHOT)
    table = standard_routes(exposition, "/metrics", lambda: not_ready)
    table["/echo"] = Route(lambda request: Reply(200, request.body), ("POST",))
    table["/large"] = Route(lambda _: Reply(200, bytes(large)))
    return table


def answer(route: Route, request: Request) -> Reply:
    """Return the reply of a handler that is not a coroutine."""
    reply = route.handler(request)
    assert isinstance(reply, Reply)
    return reply


@dataclass
class Gate:
    """Access control with fixed results."""

    refusal: Callable[[Request], Reply | Awaitable[Reply | None] | None] = lambda _: None
    tls: ssl.SSLContext | None = None
    headers: tuple[tuple[str, str], ...] = ()
    identifies: bool = False


@contextmanager
def serving(
    table: Mapping[str, Route] | None = None,
    max_connections: int = 512,
    access: Access | None = None,
) -> Iterator[tuple[str, int]]:
    running = Server([LOCAL], table or routes(), max_connections=max_connections, access=access)
    running.start()
    try:
        yield running.addresses[0]
    finally:
        running.stop()


@contextmanager
def client(address: tuple[str, int]) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        yield connection
    finally:
        connection.close()


def fetch(
    address: tuple[str, int], path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    with client(address) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), response.headers


def closed_by_server(connection: socket.socket) -> bool:
    """Wait until the server closes the connection; return False after 10 s."""
    connection.settimeout(10)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
