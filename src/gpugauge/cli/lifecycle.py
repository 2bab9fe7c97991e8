"""`gpugauge release` and `gpugauge attach`: ask a running daemon to give the driver back, and to take it again."""

from __future__ import annotations

import sys
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

import click

from gpugauge.text import printable

_PATIENCE = 25.0  # seconds: longer than the daemon takes for any answer
_MOST_BYTES = 10_000

_url = click.option("--url", default="http://127.0.0.1:10478", show_default=True, help="Address of the running daemon.")


@click.command()
@click.option("--for", "length", required=True, metavar="DURATION", help="For how long, 1s to 24h: 10m, 1h30m.")
@_url
def release(length: str, url: str) -> None:
    """Let the running daemon give the driver back for a while, to reset a GPU, change MIG or upgrade the driver.

    Returns once the driver is free. The daemon must run with --web.enable-lifecycle; a user and password that it asks
    for are taken from ~/.netrc, and SSL_CERT_FILE names the authority of its certificate.
    """
    _tell(url, "/-/release?" + urlencode({"for": length}))


@click.command()
@_url
def attach(url: str) -> None:
    """End a release: let the running daemon use the driver again. Returns once the driver answers."""
    _tell(url, "/-/attach")


def _tell(url: str, path: str) -> None:
    """POST, and print what the daemon says; exit with status 0 if it is so now, with 2 for a wrong request, else 1."""
    if not url.startswith(("http://", "https://")):
        _end(2, f"{url}: the address begins with http:// or https://")
    status, text = _post(url.rstrip("/") + path, _login(urlsplit(url).hostname or ""))
    if status == 200:
        click.echo(text)
        return
    _end(2 if status == 400 else 1, text if status else f"{url} does not answer ({text}): is `gpugauge serve` running?")


def _post(address: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return status and first line of the answer; status 0 and the reason when there is none."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(address, data=b"", method="POST", headers=headers)  # noqa: S310  (http(s) only)
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE) as response:  # noqa: S310  (see above)
            return response.status, _line(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _line(error.read(_MOST_BYTES)) or error.reason
    except urllib.error.URLError as error:
        return 0, str(error.reason)
    except OSError as error:
        return 0, str(error)


def _login(host: str) -> dict[str, str]:
    """Return the header with the user and password that ~/.netrc has for a host."""
    import base64
    import netrc

    try:
        found = netrc.netrc().authenticators(host)
    except FileNotFoundError:
        return {}
    except (OSError, netrc.NetrcParseError) as error:
        _end(2, f"~/.netrc cannot be used: {error}")
    if not found:
        return {}
    user, _, password = found
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _line(body: bytes) -> str:
    """What comes from outside must not steer the terminal."""
    text = body.decode(errors="replace").strip().partition("\n")[0]
    return printable(text)


def _end(code: int, reason: str) -> NoReturn:
    click.echo(f"gpugauge: {reason}", err=True)
    sys.exit(code)
