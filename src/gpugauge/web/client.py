"""How our own commands ask a running daemon: the login that it wants comes from ~/.netrc, as with curl."""

from __future__ import annotations

import netrc
import urllib.request
from http.client import HTTPMessage
from typing import IO, Any
from urllib.parse import urlsplit


def opener() -> urllib.request.OpenerDirector:
    """Return what opens a daemon's addresses: without proxies, with the login of ~/.netrc once it is asked for one.

    Besides what urllib raises, opening raises ValueError when that file cannot be used. SSL_CERT_FILE names the
    authority of a certificate that the system does not know.
    """
    # A proxy that the environment names is for the world outside.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _SecondTry(_NetrcLogins()))


class _SecondTry(urllib.request.HTTPBasicAuthHandler):
    """Closes the refusal once there is another answer, which urllib leaves to the garbage collector."""

    def http_error_401(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> Any:
        """Ask again with the login, if there is one."""
        try:
            answer = super().http_error_401(req, fp, code, msg, headers)
        except Exception:
            fp.close()
            raise
        if answer is not None:
            fp.close()
        return answer


class _NetrcLogins(urllib.request.HTTPPasswordMgr):
    """Asked after a 401 only: a file that is broken does not matter before."""

    def find_user_password(self, realm: str | None, authuri: str) -> tuple[str | None, str | None]:  # noqa: ARG002  (urllib's)
        """Return user and password; the realm does not matter, one host has one daemon."""
        try:
            found = netrc.netrc().authenticators(urlsplit(authuri).hostname or "")
        except FileNotFoundError:
            found = None
        except (OSError, netrc.NetrcParseError) as error:
            raise ValueError(f"~/.netrc cannot be used: {error}") from None
        return (found[0], found[2]) if found else (None, None)
