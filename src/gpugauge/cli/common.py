"""Parts that several commands share."""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn, TextIO

import click

from gpugauge.base.duration import parse_duration
from gpugauge.doctor import DEFAULT_URL

_PORT = DEFAULT_URL.rpartition(":")[2]


def with_scheme(address: str) -> str:
    """Return an address; one without a scheme is that of a host, with our port unless it has one."""
    if "://" in address:
        return address
    host = address.rstrip("/").rpartition("]")[2]
    return f"http://{address}" if ":" in host or "/" in host else f"http://{address.rstrip('/')}:{_PORT}"


def duration(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """Return the seconds of an option such as 15s or 7d. Raises BadParameter."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


url_option = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    metavar="ADDRESS",
    callback=lambda _context, _parameter, address: with_scheme(address),
    help="Address of the running daemon: a URL, host:port, or host.",
)


class OfDaemon(click.Command):
    """A command about the daemon at `--url`, which names that option where an address is given without it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError."""
        ctx.allow_extra_args = True
        more = super().parse_args(ctx, args)
        if more and not ctx.resilient_parsing:
            ctx.fail(f"unexpected argument {more[0]!r}; did you mean --url {with_scheme(more[0])}?")
        return more


def fail(status: int, reason: object) -> NoReturn:
    """Print the reason on standard error, each of its sentences after our name, and exit with the status."""
    click.echo("gpugauge: " + re.sub(r"\n(?=\S)", "\ngpugauge: ", str(reason)), err=True)
    sys.exit(status)


def wants_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
