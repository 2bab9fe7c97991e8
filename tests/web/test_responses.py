"""Responses byte by byte, what a handler is given, and connections over their whole life."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from email.utils import parsedate_to_datetime

import pytest

from gpugauge.web import server
from gpugauge.web.server import Reply, Request, Route
from tests.serving import Gate, client, fetch, routes, serving


def exchange(address: tuple[str, int], request: bytes) -> bytes:
    """Return all bytes of the response to a request that closes the connection."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    return received


def test_a_response_has_the_headers_of_its_specification() -> None:
    before = int(time.time())
    with serving() as address:
        response = exchange(address, b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = response.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)

    assert (status, body) == ("HTTP/1.1 200 OK", b"healthy\n")
    assert headers["Content-Length"] == str(len(body))
    assert headers["Content-Type"].startswith("text/plain")
    # RFC 9110, 5.6.7: the date is in GMT.
    assert re.fullmatch(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", headers["Date"])
    assert before <= parsedate_to_datetime(headers["Date"]).timestamp() <= time.time()
    # Values are of this moment, and of no use to another site.
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_headers_of_a_reply_replace_those_of_the_server() -> None:
    table = {"/": Route(lambda _: Reply(200, b"", headers=(("Cache-Control", "max-age=5"), ("X-Own", "1"))))}
    with serving(table) as address:
        headers = fetch(address, "/")[2]

    assert (headers.get_all("Cache-Control"), headers["X-Own"]) == (["max-age=5"], "1")


def test_a_handler_is_given_the_whole_request() -> None:
    seen: list[Request] = []

    def handle(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b"")

    with serving({"/a": Route(handle, ("POST",))}) as address:
        assert fetch(address, "/a?b=c?d", "POST", b"body", X_Own="1")[0] == 200
    (request,) = seen

    assert (request.method, request.path, request.query, request.body) == ("POST", "/a", "b=c?d", b"body")
    assert (request.headers["x-own"], request.remote, request.certificate) == ("1", "127.0.0.1", None)


def test_the_values_of_a_repeated_header_are_joined_in_their_order() -> None:
    seen: list[Request] = []

    def handle(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b"")

    with serving({"/a": Route(handle)}) as address, socket.create_connection(address, timeout=10) as connection:
        head = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-B: b,\r\nX-A: 1\r\nx-b: a\r\n\r\n"
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")

    assert seen[0].headers == {"host": "x", "connection": "close", "x-b": "b,,a", "x-a": "1"}  # RFC 9110, 5.3


def test_a_body_that_arrives_in_parts_is_whole() -> None:
    parts = [bytes([number]) * 3000 for number in range(10)]
    with serving() as address, socket.create_connection(address, timeout=10) as connection:
        head = f"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {sum(map(len, parts))}\r\n\r\n"
        connection.sendall(head.encode())
        for part in parts:
            connection.sendall(part)
            time.sleep(0.005)
        received = b""
        while more := connection.recv(1 << 16):
            received += more

    assert received.partition(b"\r\n\r\n")[2] == b"".join(parts)


def test_a_refusal_that_must_be_awaited_is_sent() -> None:
    async def refuse() -> Reply | None:
        return Reply(403, b"no\n")

    with serving(access=Gate(lambda _: refuse())) as address:
        assert fetch(address, "/metrics")[:2] == (403, b"no\n")
        assert fetch(address, "/metrics", "HEAD")[:2] == (403, b"")


def test_closed_connections_do_not_count() -> None:
    with serving(max_connections=2) as address, client(address) as scraper:
        for _ in range(6):
            scraper.request("GET", "/-/healthy")
            scraper.getresponse().read()
            own = scraper.sock.getsockname()
            assert fetch(address, "/-/healthy")[0] == 200
            time.sleep(0.02)  # the server sees the end of that connection
            scraper.request("GET", "/-/healthy")
            scraper.getresponse().read()
            assert scraper.sock.getsockname() == own


def test_connections_are_accepted_before_the_first_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SWEEP_SECONDS", 1000.0)
    with serving() as address:
        assert fetch(address, "/-/healthy")[0] == 200


def test_without_descriptors_accept_is_retried_at_each_sweep_only(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[float] = []

    class Refusing(socket.socket):
        """A listening socket whose accept() fails with EMFILE for a while."""

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if not refused or time.monotonic() - refused[0] < 0.5:
                refused.append(time.monotonic())
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    def bind(host: str, port: int) -> list[socket.socket]:
        listening = Refusing(socket.AF_INET)
        listening.bind((host, port))
        listening.listen()
        return [listening]

    monkeypatch.setattr(server, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(server, "bind", bind)
    with serving() as address:
        assert fetch(address, "/-/healthy")[0] == 200

    assert 2 <= len(refused) <= 12  # one each 0.05 s; a loop that spins makes thousands


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_a_client_that_leaves_before_its_reply_harms_nobody(size: int) -> None:
    with serving(routes(large=size)) as address:
        for _ in range(20):
            with socket.create_connection(address, timeout=10) as connection:
                connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        status, body, _ = fetch(address, "/large")

    assert (status, len(body)) == (200, size)


def test_requests_that_arrive_together_do_not_hold_up_another_connection() -> None:
    order: list[str] = []

    def handle(request: Request) -> Reply:
        order.append(request.path)
        if len(order) == 1:  # by now the others have arrived, too
            waiting.sendall(b"GET /waiting HTTP/1.1\r\nHost: x\r\n\r\n")
        return Reply(200, b"")

    together = 400
    with serving({path: Route(handle) for path in ("/together", "/waiting")}) as address:
        with socket.create_connection(address, timeout=10) as waiting, socket.create_connection(address, 10) as many:
            many.sendall(b"GET /together HTTP/1.1\r\nHost: x\r\n\r\n" * together)
            assert waiting.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert order.index("/waiting") < together / 10


def test_line_breaks_before_a_request_do_not_hold_up_another_connection() -> None:
    """They are no request, and may be endless (RFC 9112, section 2.2)."""
    with serving() as address, socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"\r\n" * 20_000 + b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
