"""Parts that several commands share."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, TextIO

import click

DEFAULT_URL = "http://127.0.0.1:10478"

url_option = click.option("--url", default=DEFAULT_URL, show_default=True, help="Address of the running daemon.")


def fail(status: int, reason: object) -> NoReturn:
    """Print the reason on standard error and exit with the status."""
    click.echo(f"gpugauge: {reason}", err=True)
    sys.exit(status)


def wants_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
