"""Checks against requests that foreign web pages make in a user's browser: of the Host header and of the origin."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from gpugauge.web.server import Handler, Reply, Request, Route, sentence

# Of https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header: this site, or an address that the user entered.
_OWN_SITES = ("same-origin", "none")


def own_names(listen_hosts: Iterable[str]) -> frozenset[str]:
    """Return the names of this machine: localhost, its host name with and without domain, and `listen_hosts`."""
    machine = os.uname().nodename.lower()
    given = (host.lower() for host in listen_hosts if host)
    return frozenset({"localhost", machine, machine.partition(".")[0], *given})


def foreign_host(request: Request, names: frozenset[str]) -> Reply | None:
    """Return 403 if the Host header has a name that is not in `names`, as after DNS rebinding, else None."""
    host = request.headers.get("host", "")
    name = _host_name(host)
    if not host or (name and (name in names or _is_address(name))):
        return None
    return sentence(
        403, "unknown name in the Host header: use the machine's address, its host name, localhost or a listen address"
    )


def foreign_origin(request: Request) -> Reply | None:
    """Return 403 if a page of another site made the request, else None. Programs do not send these headers."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if (site is None or site in _OWN_SITES) and (origin is None or _same_host(origin, request.headers.get("host", ""))):
        return None
    return sentence(403, "requests from pages of other sites are not allowed")


def guarded(handler: Handler, names: frozenset[str]) -> Handler:
    """Return `handler` with both checks, for requests that change something."""
    return lambda request: foreign_host(request, names) or foreign_origin(request) or handler(request)


def own_names_only(routes: Mapping[str, Route], listen_hosts: Sequence[str]) -> dict[str, Route]:
    """Return the routes with a check of the Host header if only the loopback device is listened on."""
    if not all(map(_is_loopback, listen_hosts)):
        return dict(routes)
    names = own_names(listen_hosts)

    def named(handler: Handler) -> Handler:
        return lambda request: foreign_host(request, names) or handler(request)

    return {path: route._replace(handler=named(route.handler)) for path, route in routes.items()}


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _host_name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case, without port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return (parts.hostname or "").removesuffix(".") or None if parts.netloc == host and "@" not in host else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_host(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # an unbalanced bracket
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
