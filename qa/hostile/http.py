"""Sequences of bytes by the grammar of RFC 9112 and near it, what they must lead to, and clients that send them.

A drawn sequence knows by its construction what a server must make of it. A sequence with bytes changed at random does
not: for these, llhttp (the parser of Node.js) gives a second opinion.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import httptools

from qa.hostile.http_faults import FAULTS

TIMEOUT_SECONDS = 10
_LONG_PATH = "/" + "p" * 5000
_TOKEN = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Served(NamedTuple):
    """A request as an application sees it."""

    method: str
    path: str
    query: str
    host: str | None
    body: bytes


@dataclass
class Sequence:
    """What a client sends on one connection, and what has to follow."""

    data: bytes
    served: list[Served] | None = None
    """The requests that are complete and right, in their order; None if only a second opinion knows."""
    refusal: frozenset[int] | None = None
    """The statuses of which the last reply has one, because what follows `served` is wrong; None if nothing is."""
    pieces: list[int] = field(default_factory=list)
    """The offsets at which the client waits before it sends the rest."""
    about: str = ""


class Reply(NamedTuple):
    status: int
    body: bytes
    closes: bool


# ---- right requests


@dataclass
class _Request:
    method: str
    target: bytes
    lines: list[bytes]
    body: bytes
    served: Served
    version: bytes = b"1.1"
    last: bool = False

    @property
    def data(self) -> bytes:
        return b"\r\n".join([self.start, *self.lines, b"", b""]) + self.body

    @property
    def start(self) -> bytes:
        return self.method.encode() + b" " + self.target + b" HTTP/" + self.version


def _right(chance: Random, *, last: bool, plain: bool = False) -> _Request:
    """Return a request; a plain one has what llhttp accepts: a method that it knows, and one Content-Length."""
    method = chance.choice(
        ["GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PATCH" if plain else _word(chance)]
    )
    path = chance.choice(
        ["/metrics", "/-/healthy", "/", "//", "/echo", "/%6detrics", "/a%00b", "/" + "p" * 5000, "/;a=b"]
    )
    query = chance.choice(["", "", "a=b", "?", "a=%ff&b=/../", "x" * 2000])
    target = (path + ("?" + query if query else "")).encode()
    host = chance.choice(["localhost", "127.0.0.1:10478", "[::1]:80", "[fe80::1%25eth0]", "a.example:", "", "A-b_c.d"])
    form = chance.choice(["origin"] * 4 + ["absolute", "absolute without path", "asterisk"])
    named = host
    if form.startswith("absolute"):
        host = host or "localhost"
        named = chance.choice([host, "other.example"])  # ignored
        if form.endswith("path"):
            path, target = "/", (f"?{query}" if query else "").encode()
        target = chance.choice([b"http://", b"HTTP://", b"https://"]) + host.encode() + target
    elif form == "asterisk":
        method, path, query, target = "OPTIONS", "*", "", b"*"
    lines = [_field(chance, _case(chance, "Host"), named)]
    lines += [_other(chance) for _ in range(chance.choice([0, 1, 3, 30]))]
    body, framing, sent = _body(chance, plain)
    version = b"1.1"
    if last and chance.random() < 0.3 and b"chunked" not in b"".join(framing).lower():
        version = b"1.0"
    elif last:
        lines.append(_field(chance, _case(chance, "Connection"), chance.choice(["close", "Close", "x, close"])))
    lines += framing
    chance.shuffle(lines)
    return _Request(method, target, lines, sent, Served(method, path, query, host, body), version, last)


def _body(chance: Random, plain: bool) -> tuple[bytes, list[bytes], bytes]:
    """Return a body, the header lines for it, and the bytes that are sent."""
    kind = chance.choice(["none", "none", "length", "chunked", "length" if plain else "same length twice"])
    body = chance.randbytes(chance.choice([0, 1, 17, 4000])) if kind != "none" else b""
    if chance.random() < 0.3:
        body = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"[: 1000 * (kind != "none")]
    if kind == "chunked":
        return (
            body,
            [_field(chance, _case(chance, "Transfer-Encoding"), _case(chance, "chunked"))],
            _chunks(chance, body),
        )
    if kind == "none":
        return b"", [], b""
    length = _field(chance, _case(chance, "Content-Length"), str(len(body)))
    return body, [length] * (1 + (kind != "length")), body


def _chunks(chance: Random, body: bytes) -> bytes:
    sent, rest = bytearray(), body
    while rest:
        size = chance.randint(1, max(1, min(len(rest), chance.choice([1, 50, 5000]))))
        size = max(size, len(body) // 100)
        part, rest = rest[:size], rest[size:]
        digits = f"{len(part):{chance.choice(['x', 'X', '05x'])}}".encode()
        sent += digits + _extension(chance) + b"\r\n" + part + b"\r\n"
    sent += b"0" * chance.choice([1, 1, 3]) + _extension(chance) + b"\r\n"
    for _ in range(chance.choice([0, 0, 2])):
        sent += _other(chance) + b"\r\n"
    return bytes(sent) + b"\r\n"


def _extension(chance: Random) -> bytes:
    return chance.choice([b"", b"", b";a", b";a=b", b';a="b c"', b";a=b;c=d"])


def _other(chance: Random) -> bytes:
    name = chance.choice([_word(chance), "Accept", "Accept-Encoding", "X-Long"])
    value = chance.choice(["", "gzip", "a, b;q=0.1", "\xe9\xff", "x" * 200, "a\tb"])
    return _field(chance, "X-" + name, value)


def _field(chance: Random, name: str, value: str) -> bytes:
    before, after = (chance.choice(["", " ", "\t", "  \t "]) for _ in range(2))
    return f"{name}:{before}{value}{after}".encode("latin-1")


def _word(chance: Random) -> str:
    return "".join(chance.choice(_TOKEN) for _ in range(chance.randint(1, 12)))


def _case(chance: Random, text: str) -> str:
    return "".join(chance.choice([c.lower(), c.upper()]) for c in text)


# ---- sequences


def draw(chance: Random) -> Sequence:
    """Return right requests, and in half of the cases a wrong one behind them that nothing may follow."""
    wrong = chance.random() < 0.5
    count = chance.choice([0, 1, 3] if wrong else [1, 1, 2, 8])
    requests = [_right(chance, last=not wrong and number == count - 1) for number in range(count)]
    data = b"".join(chance.choice([b"", b"", b"\r\n"]) + request.data for request in requests)
    made = Sequence(data, [request.served for request in requests], about=f"{count} right requests")
    if wrong:
        about = chance.choice(sorted(FAULTS))
        statuses, variants = FAULTS[about]
        made.data += chance.choice(variants) + chance.choice([b"", _right(chance, last=True).data])
        made.refusal, made.about = frozenset(statuses), f"{count} right requests and one with {about}"
    made.pieces = _cuts(chance, len(made.data))
    return made


def draw_changed(chance: Random) -> Sequence:
    """Return right requests in which a few bytes are changed, inserted, doubled or missing."""
    data = bytearray(b"".join(_right(chance, last=False, plain=True).data for _ in range(chance.choice([1, 2, 3]))))
    edge = [
        b"\r",
        b"\n",
        b"\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"0",
        b"\x0b",
        b"\xff",
        b"Content-Length: 3\r\n",
    ]
    for _ in range(chance.choice([1, 1, 2, 5])):
        at, length = chance.randrange(len(data)), chance.choice([0, 0, 1, 1, 2, 9])
        own = bytes(data[(begin := chance.randrange(len(data))) : begin + chance.choice([1, 30, 300])])
        data[at : at + length] = chance.choice([*edge, chance.randbytes(1), b"", own])
    return Sequence(bytes(data), pieces=_cuts(chance, len(data)), about="changed bytes")


def _cuts(chance: Random, length: int) -> list[int]:
    kind = chance.choice(["whole", "few", "few", "many"])
    count = {"whole": 0, "few": 2, "many": 40}[kind]
    return sorted(chance.randrange(length + 1) for _ in range(count))


# ---- clients


def send(address: tuple[str, int], sequence: Sequence, source: str = "127.0.0.2") -> bytes:
    """Return what the server sends, after the server has closed the connection. Raises TimeoutError if it does not."""
    with socket.create_connection(address, TIMEOUT_SECONDS, (source, 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the server may close before it has read everything
            for begin, end in zip([0, *sequence.pieces], [*sequence.pieces, None], strict=True):
                connection.sendall(sequence.data[begin:end])
            if sequence.served is None:
                connection.shutdown(socket.SHUT_WR)
        received = bytearray()
        with suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                received += part
    return bytes(received)


def _replies(data: bytes, served: list[Served]) -> Iterator[Reply]:
    """Yield the replies in what a server sent. Those to HEAD have no body, therefore the requests are needed."""
    methods = iter([request.method for request in served])
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        start, *lines = head.split(b"\r\n")
        protocol, status, _ = start.split(b" ", 2)
        assert protocol == b"HTTP/1.1", start
        assert end, "the head of a reply is cut off"
        if status == b"100":
            continue
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = 0 if next(methods, "") == "HEAD" else int(fields[b"content-length"])
        body, data = data[:length], data[length:]
        assert len(body) == length, "the body of a reply is cut off"
        yield Reply(int(status), body, fields.get(b"connection") == b"close")


# ---- judgement


def faults(sequence: Sequence, received: bytes, served: list[Served]) -> Iterator[str]:
    """Yield what is wrong with what a server sent, and with the requests that reached its application."""
    if sequence.served is None:
        for ours, other in zip(served, second_opinion(sequence.data), strict=False):
            if (ours.method, ours.body) != (other.method, other.body):
                yield f"{sequence.about}: served {ours}, and llhttp reads {other}"
        return
    answers = list(_replies(received, sequence.served))
    statuses = [reply.status for reply in answers]
    if served != sequence.served:
        yield f"{sequence.about}: served {served} instead of {sequence.served}"
    expected = len(sequence.served) + (sequence.refusal is not None)
    if len(answers) != expected:
        yield f"{sequence.about}: {len(answers)} replies instead of {expected}: {statuses}"
    elif sequence.refusal and statuses[-1] not in sequence.refusal:
        yield f"{sequence.about}: status {statuses[-1]} instead of {sorted(sequence.refusal)}"
    elif any(reply.closes for reply in answers[:-1]) or not answers[-1].closes:
        yield f"{sequence.about}: Connection: close is not on exactly the last reply"


class _Opinion:
    """Collects the complete requests that llhttp reads."""

    def __init__(self) -> None:
        self.requests: list[Served] = []
        self.parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self.target, self.body, self.method = b"", b"", ""

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_headers_complete(self) -> None:
        self.method = self.parser.get_method().decode()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.requests.append(Served(self.method, self.target.decode("latin-1"), "", None, self.body))


def second_opinion(data: bytes) -> list[Any]:
    """Return the complete requests that llhttp reads, up to the first that it refuses."""
    opinion = _Opinion()
    with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        opinion.parser.feed_data(data)
    return opinion.requests
