"""`gpugauge status`: the view of the running daemon as a table or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import NoReturn, TextIO

import click

from gpugauge.cli.common import fail, url_option, wants_colour
from gpugauge.cli.lifecycle import started
from gpugauge.status.model import Status
from gpugauge.terminal import reply
from gpugauge.terminal.table import table
from gpugauge.web.client import RequestError

_WATCH_INTERVAL_SECONDS = 2.0
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


@click.command("status")
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
@click.option("--watch", is_flag=True, help="Print the table again every two seconds until interrupted.")
def command(url: str, as_json: bool, watch: bool) -> NoReturn:
    """Show whether the GPUs do useful work, and each GPU with its processes.

    The values come from the running daemon. The first line is the answer, and the last one, too, if the terminal is
    lower than the text; problems follow with what to do. The lines fit the terminal, or COLUMNS; NO_COLOR switches
    colours off. Exits with 0 if all is well, with 1 if there is a problem, such as a missing driver, with 2 if the
    daemon does not answer.
    """
    try:
        sys.exit(show(url, as_json, watch))
    except RequestError as error:
        fail(2, error)


def show(url: str, as_json: bool, watch: bool, out: TextIO | None = None) -> int:
    """Print the status of the daemon at `url`, with `watch` repeatedly until interrupted. Return the exit status.
    Raises RequestError if there is no answer; after the first one, `watch` waits for the next.
    """
    out = out or sys.stdout
    found = fetch(url)
    text = _text(found, as_json, out)
    while watch:
        _write(out, text, clear=not as_json)
        try:
            time.sleep(_WATCH_INTERVAL_SECONDS)
        except KeyboardInterrupt:
            return exit_status(found.status)
        try:
            found = fetch(url)
            text = _text(found, as_json, out)
        except RequestError as error:
            text = f"gpugauge: {error}\n"
    _write(out, text, clear=False)
    return exit_status(found.status)


def _text(found: reply.Reply, as_json: bool, out: TextIO) -> str:
    if as_json:
        return json.dumps(found.document, indent=2) + "\n"
    size = shutil.get_terminal_size()
    return table(found.status, wants_colour(out), time.time(), size.columns, size.lines if out.isatty() else None)


def _write(out: TextIO, text: str, *, clear: bool) -> None:
    out.write((_CLEAR_SCREEN if clear and out.isatty() else "") + text)
    out.flush()


def exit_status(status: Status) -> int:
    """Return 1 if the daemon reports a problem, 0 if not."""
    return 1 if status.problems else 0


def fetch(url: str) -> reply.Reply:
    """Return the status as the daemon at `url` sends it. Raises RequestError."""
    with started():
        return reply.fetch(url)
