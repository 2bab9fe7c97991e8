"""Acts at the port: connections that are slow, silent, many, reset or refused, and whole drawn requests."""

from __future__ import annotations

import socket
import struct
from random import Random

from tests.website import WRONG

from qa.hostile import http
from qa.hostile.attack import Acts

Address = tuple[str, int]
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_RELOAD = b"POST /-/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
_SECONDS = 0.5  # to wait for a reply
_TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)


class Port:
    """A client without a login that keeps its connections."""

    def __init__(self, address: Address) -> None:
        self.draw = Random()
        self._address = address
        self._open: list[socket.socket] = []

    def connect(self) -> None:
        for _ in range(self.draw.choice((1, 10, 600))):
            self._connect()

    def begin(self) -> None:
        """Send a part of drawn requests, and no more."""
        data = http.draw(self.draw).data
        self._connect().send(data[: self.draw.randrange(len(data) + 1)])

    def drip(self) -> None:
        """Send one byte on each connection."""
        for connection in self._open:
            connection.send(b"G")

    def leave_unread(self) -> None:
        """Request bodies, and do not read them."""
        connection = self._connect()
        for _ in range(self.draw.choice((1, 100))):
            connection.send(_REQUEST)

    def scrape(self) -> None:
        """Scrape, or collect 401, over a kept connection; replies to it may be late."""
        connection = self.draw.choice(self._open) if self._open and self.draw.random() < 0.5 else self._connect()
        for _ in range(self.draw.choice((1, 20))):
            self._ask(connection, _REQUEST)

    def guess(self) -> None:
        """Send a wrong password."""
        login = WRONG if self.draw.random() < 0.5 else f"Basic {self.draw.randbytes(9).hex()}"
        self._ask(self._connect(), _REQUEST[:-2] + f"Authorization: {login}\r\n\r\n".encode())

    def reload(self) -> None:
        self._ask(self._connect(), _RELOAD)

    def noise(self) -> None:
        self._connect().send(self.draw.choice((_TLS, self.draw.randbytes(3000), b"\r\n" * 5000, b"\0")))

    def half_close(self) -> None:
        self.draw.choice(self._open).shutdown(self.draw.choice((socket.SHUT_RD, socket.SHUT_WR)))

    def reset(self) -> None:
        connection = self._open.pop(self.draw.randrange(max(1, len(self._open))))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def close(self) -> None:
        self._open.pop(self.draw.randrange(max(1, len(self._open)))).close()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, _SECONDS, ("127.0.0.2", 0))
        self._open.append(connection)
        return connection

    def _ask(self, connection: socket.socket, request: bytes) -> None:
        connection.settimeout(_SECONDS)
        connection.send(request)
        connection.recv(1 << 16)


class Http:
    """A client that sends drawn requests, and judges the replies."""

    def __init__(self, address: Address) -> None:
        self.draw = Random()
        self.faults: list[str] = []
        self._address = address

    def sequence(self) -> None:
        sequence = http.draw(self.draw)
        received = self._send(sequence)
        try:
            self.faults += http.faults(sequence, received, sequence.served or [])
        except (AssertionError, KeyError, ValueError) as error:
            self.faults.append(f"{sequence.about}: the replies cannot be read: {error!r}: {received[-300:]!r}")

    def changed(self) -> None:
        """Send changed bytes. Which of them were requests is not known here (qa/hostile/test_http.py compares)."""
        self._send(http.draw_changed(self.draw))

    def _send(self, sequence: http.Sequence) -> bytes:
        try:
            return http.send(self._address, sequence)
        except TimeoutError:
            self.faults.append(f"{sequence.about}: the connection is open after {http.TIMEOUT_SECONDS} s")
        return b""


PORT_ACTS: Acts = {
    "connect": Port.connect,
    "begin": Port.begin,
    "drip": Port.drip,
    "leave_unread": Port.leave_unread,
    "scrape": Port.scrape,
    "guess": Port.guess,
    "reload": Port.reload,
    "noise": Port.noise,
    "half_close": Port.half_close,
    "reset": Port.reset,
    "close": Port.close,
}
HTTP_ACTS: Acts = {"sequence": Http.sequence, "changed": Http.changed}
