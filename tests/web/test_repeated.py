"""Requests that come again byte for byte."""

from __future__ import annotations

import random
import socket
import time

import pytest

from gpugauge.web.messages import Headers, Request
from gpugauge.web.repeated import Repeated
from tests.serving import routes, serving

HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


def request(method: str = "GET", body: bytes = b"", *more: tuple[bytes, bytes]) -> Request:
    return Request(method, "/metrics", "", Headers(iter([(b"host", b"localhost"), *more])), body, "127.0.0.1")


def test_a_request_is_found_by_all_of_its_bytes() -> None:
    repeated = Repeated()
    repeated.add(HEAD + b"\r\n", request())

    assert repeated.get(HEAD + b"\r\n") == request()
    assert repeated.get(HEAD + b"X: y\r\n\r\n") is None


@pytest.mark.parametrize(
    ("received", "read"),
    [
        (HEAD, request()),
        (HEAD + b"\r\nG", request()),
        (HEAD + b"\r\n\r\n\r\n", request()),
        (HEAD + b"\r\n" + HEAD + b"\r\n", request()),
        (HEAD + b"\r\n", request("HEAD")),
        (HEAD + b"X: " + 2048 * b"x" + b"\r\n\r\n", request()),
        # The body, or its end, is in the bytes that follow.
        (HEAD + b"\r\n", request("GET", b"", (b"content-length", b"0"))),
        (HEAD + b"\r\n", request("GET", b"", (b"transfer-encoding", b"chunked"))),
    ],
)
def test_what_is_no_whole_request_without_a_body_is_read_each_time(received: bytes, read: Request) -> None:
    repeated = Repeated()
    repeated.add(received, read)

    assert repeated == {}


def test_the_number_is_limited() -> None:
    repeated = Repeated()
    for number in range(100):
        repeated.add(HEAD + b"X: %d\r\n\r\n" % number, request())

    assert len(repeated) == 32
    assert HEAD + b"X: 99\r\n\r\n" in repeated


@pytest.mark.parametrize("seed", range(6))
def test_drawn_repetitions_have_one_answer_each_on_one_connection(seed: int) -> None:
    """Some requests come in one piece, some in two, some have an empty body that follows."""
    chance, plain = random.Random(seed), HEAD.replace(b"/metrics", b"/-/healthy")
    chunked = plain + b"Transfer-Encoding: chunked\r\n\r\n"
    with serving(routes()) as address, socket.create_connection(address, timeout=5) as connection:
        for _ in range(12):
            pieces = chance.choice(
                [[plain + b"\r\n"], [plain, b"\r\n"], [chunked, b"0\r\n\r\n"], [plain + b"Content-Length: 0\r\n\r\n"]]
            )
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.01)
            reply = connection.recv(65536)
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert (reply.count(b"HTTP/1.1"), reply.endswith(b"\r\n\r\nhealthy\n")) == (1, True)
