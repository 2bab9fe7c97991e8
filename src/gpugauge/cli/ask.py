"""Requests of the commands to the running daemon."""

from __future__ import annotations

import click

from gpugauge.base.text import printable
from gpugauge.cli.common import fail
from gpugauge.web.client import RequestError, UnreachableError, request

_CHANGE_TIMEOUT_SECONDS = 25.0  # longer than the daemon takes for any answer
_CHANGE_MAX_BYTES = 10_000


def ask(url: str, path: str, method: str = "GET", *, timeout_seconds: float, max_bytes: int) -> bytes:
    """Return the answer of the daemon at `url` to a request for a path. Raises RequestError."""
    try:
        return request(url.rstrip("/") + path, method, timeout_seconds=timeout_seconds, max_bytes=max_bytes)
    except UnreachableError as error:
        raise RequestError(f"{error}: is `gpugauge serve` running?") from None


def change(url: str, path: str) -> None:
    """POST to the daemon and print the first line of its answer. Exits with 2 for a wrong request, with 1 if the
    daemon does not answer or cannot do it.
    """
    try:
        body = ask(url, path, "POST", timeout_seconds=_CHANGE_TIMEOUT_SECONDS, max_bytes=_CHANGE_MAX_BYTES)
    except RequestError as error:
        fail(2 if error.wrong_request else 1, error)
    click.echo(printable(body.decode(errors="replace").strip().partition("\n")[0]))
