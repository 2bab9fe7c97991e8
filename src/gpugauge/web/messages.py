"""What goes in and out of the HTTP server, and who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias


class Request(NamedTuple):
    """A complete request; `headers` look up without regard to case.

    `certificate` is the client's, verified, as `ssl.SSLSocket.getpeercert` tells it; None without one.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    remote: str
    certificate: Mapping[str, Any] | None = None


class Reply(NamedTuple):
    """What goes back; Content-Length, Date and the protective headers are added on the way out."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Handler: TypeAlias = Callable[[Request], Reply | Awaitable[Reply]]


class Route(NamedTuple):
    """What answers one path. Handlers run in the server's thread and must not block; one that waits is a coroutine."""

    handler: Handler
    methods: tuple[str, ...] = ("GET", "HEAD")


def sentence(status: int, text: str) -> Reply:
    """Return a plain text reply of one line."""
    return Reply(status, text.encode() + b"\n")
