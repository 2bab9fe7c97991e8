"""Parts that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_PORT = 10478
DEFAULT_URL = f"http://127.0.0.1:{_PORT}"


def with_scheme(address: str) -> str:
    """Return an address; one without a scheme is that of a host, with our port unless it has one."""
    if "://" in address:
        return address
    host = address.rstrip("/").rpartition("]")[2]
    return f"http://{address}" if ":" in host or "/" in host else f"http://{address.rstrip('/')}:{_PORT}"


def of_metrics(address: str) -> str:
    """Return the address of the metrics: with their default path, unless the address has a path that names them."""
    url = with_scheme(address)
    path = url.partition("://")[2].partition("/")[2]
    return f"{url.rstrip('/')}/metrics" if not path or path.endswith("/") else url


def address_option(read: Callable[[str], str], text: str) -> Callable[[_Command], _Command]:
    """Return the option --url, whose value `read` completes."""
    return click.option(
        "--url",
        default=DEFAULT_URL,
        show_default=True,
        metavar="ADDRESS",
        callback=lambda _context, _parameter, address: read(address),
        help=text,
    )


url_option = address_option(with_scheme, "Address of the running daemon: a URL, host:port, or host.")


def fail(status: int, reason: object) -> NoReturn:
    """Print the reason on standard error and exit with the status."""
    click.echo(f"gpugauge: {reason}", err=True)
    sys.exit(status)


def wants_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
