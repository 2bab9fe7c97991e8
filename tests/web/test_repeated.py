"""Requests that come again byte for byte."""

from __future__ import annotations

import itertools
import random
import socket
import time

import pytest

from gpugauge.web import http1
from gpugauge.web.messages import Headers, Reply, Request
from gpugauge.web.repeated import Repeated
from tests.serving import Gate, routes, serving

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


@pytest.mark.parametrize("blank", [b"", b"\n", b"\r\n", b"\r\n\r\n", b"\n\r\n\r\n"])
def test_no_part_of_a_request_is_remembered(blank: bytes) -> None:
    """Whoever sends that part alone would get the answer of a client that has a login."""
    whole, repeated = blank + HEAD + b"\r\n", Repeated()
    for end in range(len(whole)):
        repeated.add(whole[:end], request())

    assert repeated == {}


def test_the_number_is_limited() -> None:
    repeated = Repeated()
    for number in range(100):
        repeated.add(HEAD + b"X: %d\r\n\r\n" % number, request())

    assert len(repeated) == 32
    assert HEAD + b"X: 99\r\n\r\n" in repeated


@pytest.mark.parametrize("refused", [False, True])
def test_only_what_is_served_is_remembered(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without a login displace no request of the others."""
    repeated, sent = Repeated(), HEAD + b"\r\n"
    monkeypatch.setattr(http1, "_REPEATED", repeated)
    gate = Gate(lambda _: Reply(401, b"") if refused else None)
    with serving(access=gate) as address, socket.create_connection(address, timeout=5) as connection:
        for _ in range(2):
            connection.sendall(sent)
            assert connection.recv(65536)[9:12] == (b"401" if refused else b"200")

    assert list(repeated) == ([] if refused else [sent])


@pytest.mark.parametrize("seed", range(6))
def test_drawn_repetitions_have_one_answer_each_on_one_connection(seed: int) -> None:
    """Requests come in pieces that are cut anywhere, some after blank lines, some with an empty body that follows."""
    chance, statuses = random.Random(seed), {b"/-/healthy": b"200", b"/nothing": b"404"}
    with serving(routes()) as address, socket.create_connection(address, timeout=5) as connection:
        for _ in range(25):
            path = chance.choice(list(statuses))
            ends = [b"\r\n", b"Content-Length: 0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
            blank = chance.choice([b"", b"", b"\r\n", b"\r\n\r\n"])
            sent = blank + HEAD.replace(b"/metrics", path) + chance.choice(ends)
            cuts = sorted(chance.choice([1, 2, 3, 4, chance.randrange(len(sent))]) for _ in range(chance.randrange(3)))
            for begin, end in itertools.pairwise([0, *cuts, len(sent)]):
                connection.sendall(sent[begin:end])
                time.sleep(0.01)
            reply = connection.recv(65536)
            assert (reply.count(b"HTTP/1.1"), reply[9:12]) == (1, statuses[path])


@pytest.mark.parametrize("begin", [b"GET", b"\r\n\r\n", b"\n\r\n\r\n", b"G", b"GET /metrics"])
def test_the_beginning_of_another_clients_request_gets_no_answer(begin: bytes) -> None:
    with serving(routes()) as address:
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(begin)
            time.sleep(0.05)
            rest = HEAD + b"\r\n"
            connection.sendall(rest.removeprefix(begin) if begin.strip() else rest)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(begin)
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(65536)
