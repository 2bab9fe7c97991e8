"""`gpugauge release`: the running daemon closes the driver for a while."""

from __future__ import annotations

from urllib.parse import urlencode

import click

from gpugauge.cli.ask import change
from gpugauge.cli.common import url_option


@click.command("release")
@click.option(
    "--for",
    "length",
    required=True,
    metavar="DURATION",
    help="Time after which the daemon opens the driver again, such as 10m or 1h30m; from 1s to 24h.",
)
@url_option
def command(length: str, url: str) -> None:
    """Make the running daemon close the driver for a while.

    While it is closed, a GPU can be reset, MIG changed or the driver upgraded. Returns once the driver is free. The
    daemon must run with --web.enable-lifecycle. If it requires a user and a password, they are read from
    ~/.netrc. The environment variable SSL_CERT_FILE is the path of the authority that signed its certificate.
    """
    change(url, "/-/release?" + urlencode({"for": length}))
