"""Requests, replies and routes of the HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias


class Request(NamedTuple):
    """A complete request. `certificate` is the verified one of the client as of `ssl.SSLSocket.getpeercert`."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]  # by name in lower case
    body: bytes
    remote: str
    certificate: Mapping[str, Any] | None = None


class Client(Enum):
    """Whom access control took the client of a request for."""

    REFUSED = "refused"
    ANYBODY = "anybody"
    KNOWN = "known"
    """It has proven its identity, by a login or a certificate."""


class Reply(NamedTuple):
    """A reply. The server adds Content-Length, Date and the security headers, and sets `client`."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    client: Client = Client.REFUSED


Handler: TypeAlias = Callable[[Request], Reply | Awaitable[Reply]]


class Route(NamedTuple):
    """Handler of one path. Handlers run in the server's thread and must not block; one that waits is a coroutine."""

    handler: Handler
    methods: tuple[str, ...] = ("GET", "HEAD")


def sentence(status: int, text: str) -> Reply:
    """Return a plain text reply of one line."""
    return Reply(status, text.encode() + b"\n")
