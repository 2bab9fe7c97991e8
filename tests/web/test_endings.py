"""How connections begin and end: bursts of newcomers, the last reply over TLS, failures of the server itself."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gpugauge.web import connections, server
from gpugauge.web.server import Reply, Request, Route
from tests.certificates import Authority
from tests.serving import Gate, client, closed_by_server, routes, serving

HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n"


def test_newcomers_that_come_together_are_all_answered() -> None:
    """One of eight connections is for newcomers: each is served before the next one takes its place."""
    held, go_on = threading.Event(), threading.Event()

    def hold(_: Request) -> Reply:
        held.set()
        go_on.wait(10)
        return Reply(200, b"")

    table = routes() | {"/hold": Route(hold)}
    with serving(table, max_connections=8) as address, ExitStack() as stack:
        scrapers = [stack.enter_context(client(address)) for _ in range(7)]
        for scraper in scrapers:
            scraper.request("GET", "/-/healthy")
            assert scraper.getresponse().read() == b"healthy\n"
        scrapers[0].request("GET", "/hold")
        assert held.wait(10)
        burst = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(20)]
        for newcomer in burst:
            newcomer.sendall(HEALTHY + b"\r\n")
        go_on.set()

        assert [newcomer.recv(15) for newcomer in burst] == [b"HTTP/1.1 200 OK"] * 20


def test_the_rest_of_a_refused_request_is_read() -> None:
    """Otherwise the kernel resets the connection while the client still sends, and the client never sees the reason."""
    with serving() as address, socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(20):
            time.sleep(0.01)
            connection.sendall(bytes(32 * 1024))

        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS context of a server, and that of its clients."""
    authority, ours = Authority(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(*authority.issue(folder, "server", "127.0.0.1"))
    return ours, ssl.create_default_context(cadata=authority.pem.decode())


def test_over_tls_the_server_closes_after_the_last_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS has no half that can be closed alone: a client that waits for the end would wait for the time limit."""
    monkeypatch.setattr(connections, "_CLOSING_TIMEOUT_SECONDS", 1000.0)
    ours, theirs = contexts(tmp_path)
    with (
        serving(access=Gate(tls=ours)) as address,
        socket.create_connection(address, timeout=10) as plain,
        theirs.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(HEALTHY + b"Connection: close\r\n\r\n")
        received = b""
        while part := connection.recv(1 << 16):
            received += part

    assert received.endswith(b"\r\n\r\nhealthy\n")


def test_a_reply_that_cannot_be_sent_is_logged_and_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    table = routes() | {"/": Route(lambda _: Reply(200, b"", headers=(("X-Name", "\N{EURO SIGN}"),)))}
    with serving(table) as address, client(address) as other, socket.create_connection(address) as connection:
        other.request("GET", "/-/healthy")
        assert other.getresponse().read() == b"healthy\n"
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert closed_by_server(connection)
        other.request("GET", "/-/healthy")
        assert other.getresponse().read() == b"healthy\n"

    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("gpugauge.server", "a connection failed")
    assert record.exc_info


class Recording(socket.socket):
    """A listening socket that remembers the connections it accepted."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET)
        self.accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, address = super().accept()
        self.accepted.append(connection)
        return connection, address


def test_the_kernel_keeps_no_part_of_a_reply_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Recording()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setattr(server, "bind", lambda *_: [listening])
        with serving() as address, client(address) as scraper:
            scraper.request("GET", "/-/healthy")
            scraper.getresponse().read()
            (connection,) = listening.accepted
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
