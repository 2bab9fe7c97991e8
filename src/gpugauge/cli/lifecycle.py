"""`gpugauge release`, `attach` and `forget`: requests that change what the running daemon does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import click

from gpugauge.base.text import printable
from gpugauge.cli.common import OfDaemon, fail, url_option
from gpugauge.web.client import RequestError, UnreachableError, request

_TIMEOUT_SECONDS = 25.0  # longer than the daemon takes for any answer
_MAX_BYTES = 10_000


@contextmanager
def started() -> Iterator[None]:
    """Ask whether the daemon runs if there is no connection to it."""
    try:
        yield
    except UnreachableError as error:
        raise RequestError(f"{error}: is `gpugauge serve` running?") from None


def _change(url: str, path: str, subject: str = "the driver") -> None:
    """POST to the daemon and print the first line of its answer, which is about `subject`. Exits with 2 for a wrong
    request, otherwise with 1.
    """
    address = url.rstrip("/") + path
    try:
        with started():
            body = request(address, "POST", timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BYTES)
    except RequestError as error:
        fail(2 if error.wrong_request else 1, error)
    answer = body.decode(errors="replace").strip().partition("\n")[0]
    # Other servers answer 200 as well, and a GPU may be reset after that.
    if not answer.startswith((f"{subject} ", "driver.mode=off: ")):
        fail(1, f"{address} does not answer as gpugauge does")
    click.echo(printable(answer))


@click.command("release", cls=OfDaemon)
@click.option(
    "--for",
    "length",
    required=True,
    metavar="DURATION",
    help="Time after which the daemon opens the driver again, such as 10m or 1h30m; from 1s to 24h.",
)
@url_option
def release(length: str, url: str) -> None:
    """Make the running daemon close the driver for a while.

    While it is closed, a GPU can be reset, MIG changed or the driver upgraded. Returns once the driver is free. The
    daemon must run with --web.enable-lifecycle. If it requires a user and a password, they are read from
    ~/.netrc. The environment variable SSL_CERT_FILE is the path of the authority that signed its certificate.
    """
    _change(url, "/-/release?" + urlencode({"for": length}))


@click.command("attach", cls=OfDaemon)
@url_option
def attach(url: str) -> None:
    """Make the running daemon open the driver again.

    Ends a release before its time. Returns once the driver answers. The daemon must run with
    --web.enable-lifecycle. If it requires a user and a password, they are read from
    ~/.netrc.
    """
    _change(url, "/-/attach")


@click.command("forget", cls=OfDaemon)
@click.argument("uuid")
@url_option
def forget(uuid: str, url: str) -> None:
    """Make the running daemon forget a GPU that was removed for good.

    UUID is that of `gpugauge status` or of the label of gpu_up. The GPU must be down. It is reported again once the
    driver reads it. The daemon must run with --web.enable-lifecycle, as for `gpugauge release`.
    """
    _change(url, "/-/forget?" + urlencode({"uuid": uuid}), uuid)
