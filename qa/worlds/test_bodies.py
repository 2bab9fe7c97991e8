"""Bodies in drawn chunks, up to the limits of docs/http.md and beyond."""

from __future__ import annotations

import random
import socket
import time
from itertools import pairwise

import pytest
from tests.drawn import seeds
from tests.serving import serving

MAX_BODY, MAX_CHUNKED = 64 * 1024, 128 * 1024
HEAD = (
    b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_EXTENDED = 8000  # bytes of a chunk's extension: a line has a limit of its own


def chunked(body: bytes, length: int | None, chance: random.Random) -> list[bytes]:
    """Return the body in drawn chunks, the last of them empty, extended to `length` bytes in all."""
    number = 15 if length else chance.choice([0, 5, 15])
    cuts = sorted({0, len(body), *(chance.randrange(len(body) + 1) for _ in range(number))})
    parts = [body[begin:end] for begin, end in pairwise(cuts)] + [b""]
    missing = 0 if length is None else length - sum(len(b"%x\r\n%b\r\n" % (len(part), part)) for part in parts)
    found = []
    for place, part in enumerate(parts):
        extension = b";" + b"x" * (min(_MOST_EXTENDED, missing // (len(parts) - place)) - 1) if missing else b""
        missing -= len(extension)
        found.append(b"%x%b\r\n%b\r\n" % (len(part), extension, part))
    assert missing <= 0
    return found


def exchange(address: tuple[str, int], chunks: list[bytes], chance: random.Random) -> bytes:
    """Send the chunks, the first byte and the last chunk apart from the rest; return all bytes of the response."""
    data, last = b"".join(chunks[:-1]), chunks[-1]
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(HEAD)
        received = b""
        while received != CONTINUE:
            received += connection.recv(len(CONTINUE) - len(received))
        received = b""
        for piece in (data[:1], data[1:], last):
            connection.sendall(piece)
            time.sleep(chance.choice([0.0, 0.005, 0.02]))
        while part := connection.recv(1 << 16):
            received += part
    return received


@seeds(range(30))
def test_drawn_chunks_are_one_body_up_to_the_limits(seed: int) -> None:
    chance = random.Random(seed)
    body = chance.randbytes(chance.choice([0, 1, 3000, MAX_BODY - 1, MAX_BODY, MAX_BODY, MAX_BODY + 1]))
    length = chance.choice([None, None, MAX_CHUNKED - 1, MAX_CHUNKED, MAX_CHUNKED, MAX_CHUNKED + 1])
    if len(body) < MAX_BODY - 1:
        length = None  # extensions of that length would be longer than a line may be
    chunks = chunked(body, length, chance)
    fits = len(body) <= MAX_BODY and sum(map(len, chunks)) <= MAX_CHUNKED

    with serving() as address:
        head, _, content = exchange(address, chunks, chance).partition(b"\r\n\r\n")

    assert head.split()[1] == (b"200" if fits else b"413")  # the phrase depends on the version of Python
    assert (content == body) is fits


def request(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


LONGEST = 16 * 1024 - sum(map(len, (b"host", b"x", b"a"))) - 2 * len(b": \r\n")  # value of the header a


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(b"GET /metrics HTTP/1.1", b"Host: x", b"a: " + b"b" * LONGEST), 200),
        (request(b"GET /metrics HTTP/1.1", b"Host: x", b"a: " + b"b" * (LONGEST + 1)), 431),
        (request(b"GET http://x/metrics?a HTTP/1.1", b"Host: y"), 200),
        (request(b"GET http://x?a HTTP/1.1", b"Host: y"), 404),
        (request(b"CONNECT x:443 HTTP/1.1", b"Host: x:443"), 405),
        (request(b"GET /metrics HTTP/1.1", b"Host: x y"), 400),
        (request(b"GET /metrics HTTP/1.1", b"Host: x", b"no header"), 400),
    ],
    ids=range(7),
)
def test_a_request_at_a_limit_or_beyond(sent: bytes, status: int) -> None:
    with serving() as address, socket.create_connection(address, timeout=10) as connection:
        connection.sendall(sent)
        head = connection.recv(1 << 16).partition(b"\r\n\r\n")[0]

    assert head.split()[1] == b"%d" % status
    assert (b"\r\nConnection: close" in head) == (status not in {200, 404})
