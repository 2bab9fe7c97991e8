"""`gpugauge forget`: the running daemon no longer reports a GPU that was removed for good."""

from __future__ import annotations

from urllib.parse import urlencode

import click

from gpugauge.cli.ask import change
from gpugauge.cli.common import url_option


@click.command("forget")
@click.argument("uuid")
@url_option
def command(uuid: str, url: str) -> None:
    """Make the running daemon forget a GPU that was removed for good.

    UUID is that of `gpugauge status` or of the label of gpu_up. The GPU must be down. It is reported again once the
    driver reads it. The daemon must run with --web.enable-lifecycle, as for `gpugauge release`.
    """
    change(url, "/-/forget?" + urlencode({"uuid": uuid}))
