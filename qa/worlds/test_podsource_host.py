"""The Host header of the requests for pods, as RFC 9110 and Go's server read it."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.drawn import seeds

from gpugauge.workload.kubernetes.source import PodSource, of_api


class Connection(contextlib.nullcontext[Any]):
    """A server that answers with an empty list."""

    def __init__(self) -> None:
        super().__init__(self)
        self.sent, self._answers = b"", [b'HTTP/1.0 200 OK\r\n\r\n{"items": []}', b""]

    def wrap_socket(self, *_: object, **__: object) -> Connection:
        return self

    def settimeout(self, seconds: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, size: int) -> bytes:
        return self._answers.pop(0)[:size]


@seeds(range(50))
def test_the_host_is_an_authority(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    kind = draw.choice((4, 6, 0))
    address = {
        4: ipaddress.IPv4Address(draw.getrandbits(32)),
        6: ipaddress.IPv6Address(draw.getrandbits(128)),
        0: "api.k8s",
    }
    host, port, connection = str(address[kind]), draw.randint(1, 65535), Connection()
    (tmp_path / "token").write_text("secret")
    monkeypatch.setattr(socket, "create_connection", lambda *_: connection)
    monkeypatch.setattr(PodSource, "_context", lambda _: connection)

    assert of_api(host, port, "node-1", tmp_path).pods(()) == {}

    (line,) = [line for line in connection.sent.decode().split("\r\n") if line.startswith("Host: ")]
    parts = urlsplit(f"//{line.removeprefix('Host: ')}")
    assert (parts.hostname, parts.port) == (host, port)
