"""Requests that arrive in pieces."""

from __future__ import annotations

import itertools
import random
import socket
import time

import pytest
from tests.drawn import seeds
from tests.serving import routes, serving

HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@seeds(range(6))
def test_drawn_pieces_of_requests_have_one_answer_each(seed: int) -> None:
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
