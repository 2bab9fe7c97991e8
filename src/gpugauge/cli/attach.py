"""`gpugauge attach`: the running daemon opens the driver again."""

from __future__ import annotations

import click

from gpugauge.cli.ask import change
from gpugauge.cli.common import url_option


@click.command("attach")
@url_option
def command(url: str) -> None:
    """Make the running daemon open the driver again.

    Ends a release before its time. Returns once the driver answers. The daemon must run with
    --web.enable-lifecycle. If it requires a user and a password, they are read from
    ~/.netrc.
    """
    change(url, "/-/attach")
