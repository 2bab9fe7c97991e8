"""Listening sockets."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

# Connections that may queue while the event loop is busy. With a full queue a client retries after one second.
_BACKLOG = 1024
_ABSENT = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


class ListenError(Exception):
    """Listening on an address failed. The message is one sentence for the user."""


def bind(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a listening socket for each address of the host, which the caller closes. Raises ListenError."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if host in {"", "::"}:  # the latter as in Go, where it is both
            yield _bind_all_interfaces(port)
        else:
            yield from _bind_each(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE))
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {where}: {str(error.strerror).lower()}") from None
    except OSError as error:
        advice = "; --web.listen-address chooses another" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {where}: {os.strerror(error.errno or 0).lower()}{advice}") from None


def _bind_each(found: Sequence[tuple[Any, ...]]) -> Iterator[socket.socket]:
    """Bind the addresses of a name; without those that this machine does not have, unless it has none."""
    bound, absent = 0, None
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
        try:
            made = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            absent = error
            continue
        bound += 1
        yield made
    if absent and not bound:
        raise absent


def _bind_all_interfaces(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in _ABSENT:  # in containers IPv6 is often compiled in but disabled
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)
