"""The HTTP client of our own commands: one bounded request to a running daemon, never through a proxy."""

from __future__ import annotations

import http.client
import netrc
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

from gpugauge.base.guard import Background
from gpugauge.base.text import printable

_MAX_REFUSAL_BYTES = 10_000


class RequestError(Exception):
    """A request without a usable answer, in a printable sentence. `wrong_request`: the daemon is not the reason."""

    def __init__(self, sentence: str, *, wrong_request: bool = False) -> None:
        super().__init__(printable(sentence))
        self.wrong_request = wrong_request


class UnreachableError(RequestError):
    """No connection to the address."""


def request(
    url: str,
    method: str = "GET",
    *,
    timeout_seconds: float,
    max_bytes: int,
    form: Mapping[str, str] | None = None,
    server: str = "gpugauge",
) -> bytes:
    """Return the body of the answer. A login of ~/.netrc is sent only after a 401. `form` is the body of a POST,
    `server` the program that should answer. Raises RequestError.
    """
    _check(url)
    body_sent = urlencode(form or {}).encode() if method == "POST" else None
    try:
        # In a thread: the time-out of a socket bounds each read instead of their sum, and name resolution has none.
        work: Background[bytes] = Background("request")
        body = work.call(timeout_seconds, lambda: _send(url, method, body_sent, timeout_seconds, max_bytes))
    except TimeoutError:
        raise RequestError(f"{url} does not answer within {timeout_seconds:g} s") from None
    except urllib.error.URLError as error:
        raise _error_of(url, error.reason) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RequestError(f"{url} does not answer as {server} does: {' '.join(str(error).split())}") from None
    if len(body) > max_bytes:
        raise RequestError(f"{url} does not answer as {server} does: more than {max_bytes} bytes")
    return body


def _check(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"{url}: the address begins with http:// or https://", wrong_request=True)
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable:
        raise RequestError(f"{url}: an address is written http://127.0.0.1:10478", wrong_request=True)
    if parts.username is not None:
        raise RequestError("user and password belong in ~/.netrc, not in the address", wrong_request=True)


def _error_of(url: str, reason: str | BaseException) -> RequestError:
    if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError):
        return UnreachableError(f"{url} does not answer ({reason.strerror or reason})")
    return RequestError(f"{url} cannot be used: {reason}")


def _send(url: str, method: str, form: bytes | None, timeout_seconds: float, max_bytes: int) -> bytes:
    sent = urllib.request.Request(url, data=form, method=method)  # noqa: S310  (http(s))
    try:
        with _opener().open(sent, timeout=timeout_seconds) as response:
            body: bytes = response.read(max_bytes + 1)
            return body
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(_MAX_REFUSAL_BYTES).decode(errors="replace").strip().partition("\n")[0]
        sentence = f"{url} answers {error.code}: {text or error.reason}"
        raise RequestError(sentence, wrong_request=error.code == 400) from None


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https without ProxyHandler: a proxy of the environment must receive no login."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.UnknownHandler(),  # a redirect to another scheme
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _LoginAfterRefusal(_NetrcLogins()),
    ):
        opener.add_handler(handler)
    return opener


class _LoginAfterRefusal(urllib.request.HTTPBasicAuthHandler):
    """Sends a request again with its login. Closes the refusal, which urllib leaves to the garbage collector."""

    def http_error_401(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> Any:
        """Return the answer to the second request, or None without a login."""
        try:
            answer = super().http_error_401(req, fp, code, msg, headers)
        except Exception:
            fp.close()
            raise
        if answer is not None:
            fp.close()
        return answer


class _NetrcLogins(urllib.request.HTTPPasswordMgr):
    """The logins of ~/.netrc. urllib calls it after a 401 only, so that a broken file matters only then."""

    def find_user_password(self, realm: str | None, authuri: str) -> tuple[str | None, str | None]:  # noqa: ARG002  (urllib's)
        """Return user and password for a host; the realm is ignored, since one host has one daemon."""
        try:
            found = netrc.netrc().authenticators(urlsplit(authuri).hostname or "")
        except FileNotFoundError:
            found = None
        except (OSError, netrc.NetrcParseError) as error:
            raise RequestError(f"~/.netrc cannot be used: {error}", wrong_request=True) from None
        return (found[0], found[2]) if found else (None, None)
