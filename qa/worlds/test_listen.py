"""Listening sockets: each address of a name that this machine has, once."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Any

import pytest
from tests.drawn import seeds

from gpugauge.web import listen

# The last two are of documentation (RFC 5737, RFC 3849): no machine has them.
ADDRESSES = ("127.0.0.1", "127.0.0.2", "::1", "192.0.2.1", "2001:db8::1")


def found(address: str, port: int) -> tuple[Any, ...]:
    """Return what getaddrinfo() returns for an address."""
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)


def exists(address: str) -> bool:
    """Return whether this machine has the address, as bind(2) says."""
    family, *_, where = found(address, 0)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as made:
        made.bind(where)
        return True
    return False


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


@seeds(range(12))
def test_drawn_names_are_bound_where_they_can_be(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    drawn = [chance.choice(ADDRESSES) for _ in range(chance.randint(1, 4))]
    port, expected = free_port(), {address for address in drawn if exists(address)}
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [found(address, port) for address in drawn])

    with contextlib.ExitStack() as stack:
        context = contextlib.nullcontext() if expected else pytest.raises(listen.ListenError, match="cannot listen on")
        bound: list[str] = []
        with context:
            bound.extend(stack.enter_context(made).getsockname()[0] for made in listen.bind("name", port))
        assert (len(bound), set(bound)) == (len(expected), expected)


@pytest.mark.parametrize("host", ["", "::"])
def test_all_addresses_are_those_of_both_protocols(host: str) -> None:
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(made) for made in listen.bind(host, 0)]
        port = bound[0].getsockname()[1]
        for address in filter(exists, ("127.0.0.1", "::1")):
            socket.create_connection((address, port), timeout=5).close()
