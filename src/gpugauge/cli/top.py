"""`gpugauge top`: the running daemon's view, live, with keys."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from gpugauge.cli.common import OfDaemon, fail, url_option
from gpugauge.cli.status import fetched, mine_option

_INTERVAL_SECONDS = 2.0


@click.command("top", cls=OfDaemon, short_help="Follow the GPUs and processes, live.")
@url_option
@mine_option
def command(url: str, mine: bool) -> None:
    """Follow the GPUs and processes of a machine, with the cause and share of lost GPU time.

    The key ? lists all keys, q quits. It needs the package textual. If the daemon does not answer, top says so and
    tries again every two seconds.
    """
    if importlib.util.find_spec("textual") is None:
        fail(2, f"gpugauge top needs the package textual>=3.2 in {sys.prefix}; gpugauge status --watch does not")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail(2, "gpugauge top needs a terminal; gpugauge status prints the same once")
    from gpugauge.terminal.reply import Feed
    from gpugauge.terminal.top import Top
    from gpugauge.web.client import RequestError

    os.environ |= {"COLUMNS": "", "LINES": ""}  # they would hide the size of the terminal, and its changes
    (app := Top(Feed(lambda: fetched(url, mine).status, RequestError, _INTERVAL_SECONDS))).run()
    sys.exit(app.return_code)
