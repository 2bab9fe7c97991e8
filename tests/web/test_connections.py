from __future__ import annotations

import asyncio
import errno
import http.client
import os
import random
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from gpugauge.web import connections as server_connections
from gpugauge.web import http1, server
from gpugauge.web.server import Reply, Request, sentence
from tests.drawn import seeds
from tests.serving import Gate, client, closed_by_server, fetch, routes, serving


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make the server check for overdue connections often."""
    monkeypatch.setattr(server, "_SWEEP_SECONDS", 0.01)
    return monkeypatch


def test_bodies_and_headers_are_bounded() -> None:
    with serving() as address:
        assert fetch(address, "/echo", "POST", bytes(64 * 1024))[:2] == (200, bytes(64 * 1024))
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20_000)
            assert closed_by_server(connection)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n"])
def test_garbage_is_answered_by_closing(garbage: bytes, short: pytest.MonkeyPatch) -> None:
    short.setattr(server_connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    with serving() as address:
        with socket.create_connection(address) as connection:
            connection.sendall(garbage)
            assert closed_by_server(connection)
        assert fetch(address, "/-/healthy")[0] == 200


def test_unfinished_headers_are_cut_off(short: pytest.MonkeyPatch) -> None:
    short.setattr(server_connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    with serving() as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert closed_by_server(connection)


def test_an_unfinished_body_is_cut_off(short: pytest.MonkeyPatch) -> None:
    short.setattr(server_connections, "REQUEST_TIMEOUT_SECONDS", 0.05)
    with serving() as address, socket.create_connection(address) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert closed_by_server(connection)


def test_a_client_that_does_not_read_is_cut_off(short: pytest.MonkeyPatch) -> None:
    short.setattr(server_connections, "REQUEST_TIMEOUT_SECONDS", 0.2)
    size = 64 << 20  # more than the kernel buffers
    with serving(routes(large=size)) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.5)
        received = 0
        connection.settimeout(10)
        try:
            while part := connection.recv(1 << 20):
                received += len(part)
        except ConnectionResetError:
            pass
    assert received < size


def test_kernel_buffers_little_of_a_reply_that_is_not_read() -> None:
    with serving(routes(large=64 << 20)) as address, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        ends = f":{address[1]:04X} ", f":{connection.getsockname()[1]:04X} "
        held = [0]
        while not held[-1] or held[-1] != held[-2]:
            time.sleep(0.1)
            (line,) = (
                s for s in Path("/proc/net/tcp").read_text().splitlines() if 0 < s.find(ends[0]) < s.find(ends[1])
            )
            held.append(int(line.split()[4].split(":")[0], 16))  # tx_queue
    assert held[-1] < 1 << 20


def test_an_idle_connection_is_closed_in_the_end(short: pytest.MonkeyPatch) -> None:
    short.setattr(server_connections, "IDLE_TIMEOUT_SECONDS", 0.05)
    with serving() as address, client(address) as connection:
        connection.request("GET", "/-/healthy")
        connection.getresponse().read()
        assert closed_by_server(connection.sock)


@pytest.mark.parametrize(
    "start", [b"", b"GET / HTTP/1.1\r\n", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
def test_slow_connections_evict_each_other_and_never_a_scraper(start: bytes) -> None:
    with serving(max_connections=8) as address, client(address) as scraper, ExitStack() as stack:
        scraper.request("GET", "/metrics")
        scraper.getresponse().read()
        own = scraper.sock.getsockname()
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(30)]
        for connection in slow:
            with suppress(OSError):  # already evicted
                connection.sendall(start)

        assert closed_by_server(slow[0])
        scraper.request("GET", "/metrics")
        assert (scraper.getresponse().status, scraper.sock.getsockname()) == (200, own)
        assert fetch(address, "/metrics")[0] == 200  # a new scraper is accepted, too


def asked(connection: http.client.HTTPConnection, path: str = "/metrics", **headers: str) -> int:
    """Return the status of a request on a connection that was opened before; 0 if the server has closed it."""
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return 0
    return response.status


def opened(address: tuple[str, int], source: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(*address, timeout=10, source_address=(source, 0))
    connection.auto_open = 0  # a closed connection is not opened again
    connection.connect()
    return connection


def login_needed(request: Request) -> Reply | None:
    return None if request.headers.get("authorization") == "right" else sentence(401, "who are you?")


@seeds(range(6))
def test_connections_that_have_not_logged_in_never_displace_one_that_has(seed: int) -> None:
    """The drawn strangers collect refusals, send parts of requests or nothing, from the scraper's address or others."""
    chance = random.Random(seed)
    access = Gate(login_needed, identifies=True)
    with serving(routes(large=8 << 20), max_connections=16, access=access) as address, ExitStack() as stack:
        scrapers = [stack.enter_context(closing(opened(address, "127.0.0.1"))) for _ in range(3)]
        assert [asked(scraper, Authorization="right") for scraper in scrapers] == [200] * 3
        slow = stack.enter_context(closing(opened(address, "127.0.0.1")))
        slow.request("GET", "/large", headers={"Authorization": "right"})
        strangers: list[http.client.HTTPConnection] = []
        for _ in range(400):
            if len(strangers) < 60 or chance.random() < 0.3:
                stranger = opened(
                    address, chance.choice(["127.0.0.1", "127.0.0.2", f"127.0.1.{chance.randrange(200)}"])
                )
                strangers.append(stack.enter_context(closing(stranger)))
            stranger = chance.choice(strangers)
            if chance.random() < 0.7:
                assert asked(stranger, Authorization="wrong") in (0, 400, 401)
            elif stranger.sock:
                with suppress(OSError):
                    stranger.sock.sendall(chance.choice([b"", b"GET / HTTP/1.1\r\n", b"\r\n"]))
            if chance.random() < 0.05:
                assert [asked(scraper, Authorization="right") for scraper in scrapers] == [200] * 3
        newcomer = stack.enter_context(closing(opened(address, "127.0.0.1")))
        assert asked(newcomer, Authorization="right") == 200
        assert len(slow.getresponse().read()) == 8 << 20


def test_without_users_an_address_with_many_connections_displaces_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connections, "prefix", str)  # each address of 127.0.0.0/8 is one of its own
    with serving(max_connections=16) as address, ExitStack() as stack:
        scraper = stack.enter_context(closing(opened(address, "127.0.0.1")))
        assert asked(scraper) == 200
        for _ in range(100):
            assert asked(stack.enter_context(closing(opened(address, "127.0.0.2")))) == 200
        assert asked(scraper) == 200


def test_without_users_the_connections_that_were_served_first_stay() -> None:
    with serving(max_connections=16) as address, ExitStack() as stack:
        connections = [stack.enter_context(closing(opened(address, "127.0.0.1"))) for _ in range(14)]
        assert [asked(connection) for connection in connections] == [200] * 14
        for _ in range(20):
            last = stack.enter_context(closing(opened(address, "127.0.0.1")))
            assert asked(last) == 200  # its answer is whole, and only then the connection is closed
            assert closed_by_server(last.sock)
        assert [asked(connection) for connection in connections] == [200] * 14


def test_a_connection_whose_login_is_checked_is_not_displaced() -> None:
    go_on = threading.Event()

    async def granted() -> Reply | None:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return None

    access = Gate(lambda request: granted() if "authorization" in request.headers else None, identifies=True)
    with serving(max_connections=16, access=access) as address, ExitStack() as stack:
        waiting = stack.enter_context(closing(opened(address, "127.0.0.1")))
        waiting.request("GET", "/metrics", headers={"Authorization": "right"})
        silent = [stack.enter_context(closing(opened(address, "127.0.0.1"))) for _ in range(100)]
        assert closed_by_server(silent[0].sock)
        go_on.set()
        assert waiting.getresponse().status == 200


class Failing(socket.socket):
    """A listening socket whose accept() fails twice, by default with EMFILE."""

    refused, error = 0, errno.EMFILE

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.refused < 2:
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error))
        return super().accept()


def test_server_is_idle_unless_a_request_is_in_progress(short: pytest.MonkeyPatch) -> None:
    sweeps: dict[bool, list[float]] = {True: [], False: []}
    close_overdue = server_connections.Listener.close_overdue

    def recorded(self: server_connections.Listener, now: float) -> None:
        close_overdue(self, now)
        sweeps[self.is_idle].append(now)

    def wait_for_sweeps(*, idle: bool) -> None:
        before = len(sweeps[idle])
        while len(sweeps[idle]) < before + 2:
            time.sleep(0.005)

    short.setattr(server_connections.Listener, "close_overdue", recorded)
    with serving() as address, client(address) as scraper:
        wait_for_sweeps(idle=True)
        scraper.request("GET", "/-/healthy")
        assert scraper.getresponse().read() == b"healthy\n"
        wait_for_sweeps(idle=True)  # a connection that a scraper keeps open does not count
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
            wait_for_sweeps(idle=False)


@pytest.mark.parametrize("size", [http1._MAX_COPIED_REPLY_BYTES, http1._MAX_COPIED_REPLY_BYTES + 1])
def test_replies_are_complete_whether_sent_in_one_call_or_in_two(size: int) -> None:
    with serving(routes(large=size)) as address:
        status, body, headers = fetch(address, "/large")
        assert (status, body, headers["Content-Length"]) == (200, bytes(size), str(size))
        assert fetch(address, "/large", "HEAD")[:2] == (200, b"")


def test_connection_waits_while_there_are_no_descriptors(
    short: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listening: list[Failing] = []

    def bind(host: str, port: int) -> list[socket.socket]:
        listening.append(Failing(socket.AF_INET))
        listening[0].bind((host, port))
        listening[0].listen()
        return [*listening]

    short.setattr(server, "bind", bind)
    with caplog.at_level("INFO"), serving() as address:
        assert fetch(address, "/-/healthy")[0] == 200

    assert listening[0].refused == 2  # not a thousand times: accept() is retried at the next sweep
    assert [(record.name, record.message) for record in caplog.records] == [
        ("gpugauge.server", "no connection can be accepted, open ones continue"),
        ("gpugauge.server", "connections are accepted again"),
    ]


@pytest.mark.parametrize("error", [errno.ECONNABORTED, errno.EPROTO, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EPERM])
def test_a_connection_that_ended_before_it_was_accepted_holds_up_nobody(
    error: int, short: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """accept(2) reports pending errors of the new connection: they are none of the listening socket."""
    short.setattr(server_connections.Listener, "close_overdue", lambda *_: None)  # no sweep would go on

    def bind(host: str, port: int) -> list[socket.socket]:
        made = Failing(socket.AF_INET)
        made.error = error
        made.bind((host, port))
        made.listen()
        return [made]

    short.setattr(server, "bind", bind)
    with caplog.at_level("INFO"), serving() as address:
        assert fetch(address, "/-/healthy")[0] == 200

    assert not caplog.records
