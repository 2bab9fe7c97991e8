"""`gpugauge status`: the view of the running daemon as a table or as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO

import click

from gpugauge.cli.ask import ask
from gpugauge.cli.common import fail, url_option, wants_colour
from gpugauge.cli.status_table import Facts, table
from gpugauge.web.client import RequestError

_PATH = "/api/v1/status"
_TIMEOUT_SECONDS = 5.0
_MAX_BODY_BYTES = 64 << 20
_WATCH_INTERVAL_SECONDS = 2.0
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


@click.command("status")
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
@click.option("--watch", is_flag=True, help="Print the table again every two seconds until interrupted.")
def command(url: str, as_json: bool, watch: bool) -> None:
    """Show each GPU, its load and its processes.

    The values come from the running daemon.
    """
    try:
        show(url, as_json, watch)
    except RequestError as error:
        fail(1, error)


def show(url: str, as_json: bool, watch: bool, out: TextIO | None = None) -> None:
    """Print the status of the daemon at `url`, with `watch` repeatedly until interrupted. Raises RequestError."""
    out = out or sys.stdout
    while True:
        facts = fetch(url)
        text = json.dumps(facts, indent=2) + "\n" if as_json else table(facts, wants_colour(out), time.time())
        out.write((_CLEAR_SCREEN if watch and out.isatty() and not as_json else "") + text)
        out.flush()
        if not watch:
            return
        try:
            time.sleep(_WATCH_INTERVAL_SECONDS)
        except KeyboardInterrupt:
            return


def fetch(url: str) -> Facts:
    """Return the status as the daemon at `url` sends it. Raises RequestError."""
    body = ask(url, _PATH, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BODY_BYTES)
    unusable = f"{url} does not answer as gpugauge does"
    try:
        facts = json.loads(body)
    except ValueError as error:
        raise RequestError(f"{unusable}: {error}") from None
    if not isinstance(facts, dict) or "gpus" not in facts:
        raise RequestError(unusable)
    return facts
