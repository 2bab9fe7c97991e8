"""Against strangers' web pages in a person's browser: a request must name this machine, and not come from elsewhere."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from gpugauge.web.server import Handler, Reply, Request, Route, sentence

# What a browser says about where a request comes from (https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header):
# this very site, or nobody but the person.
_OWN_SITES = ("same-origin", "none")


def own_names(listen_hosts: Iterable[str] = ()) -> frozenset[str]:
    """Return the names by which this machine may be called: its own, with and without domain, and `listen_hosts`."""
    machine = os.uname().nodename.lower()
    given = (host.lower() for host in listen_hosts if host)
    return frozenset({"localhost", machine, machine.partition(".")[0], *given})


def foreign_host(request: Request, names: frozenset[str]) -> Reply | None:
    """Return the refusal of a request that calls this machine by a name that is neither an address nor in `names`.

    A page of a stranger reaches a private address by letting its own name resolve to it (DNS rebinding); then the
    browser believes both to be one site, and only the Host header tells. Programs may leave the header out.
    """
    host = request.headers.get("Host", "")
    name = _host_name(host)
    if not host or (name and (name in names or _is_address(name))):
        return None
    return sentence(
        403, "this name is not known here: use the machine's address, its own name, localhost, or a listen address"
    )


def foreign_origin(request: Request) -> Reply | None:
    """Return the refusal of a request that a page of another site has made; programs do not send these headers."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    if (site is None or site in _OWN_SITES) and (origin is None or _same_host(origin, request.headers.get("Host", ""))):
        return None
    return sentence(403, "another site's page must not ask for this")


def guarded(handler: Handler, names: frozenset[str] | None = None) -> Handler:
    """Return `handler` behind both checks: for what changes something. `names` as from `own_names`, the default."""
    known = own_names() if names is None else names

    def checked(request: Request) -> Reply | Awaitable[Reply]:
        return foreign_host(request, known) or foreign_origin(request) or handler(request)

    return checked


def own_names_only(routes: Mapping[str, Route], listen_hosts: Sequence[str]) -> dict[str, Route]:
    """Return the routes so that a daemon for this machine only answers to this machine's names only: what it tells
    cannot be read by a stranger's page either. Where others may connect, it may have names that nobody told us.
    """
    if not all(map(_is_loopback, listen_hosts)):
        return dict(routes)
    names = own_names(listen_hosts)

    def named(handler: Handler) -> Handler:
        return lambda request: foreign_host(request, names) or handler(request)

    return {path: route._replace(handler=named(route.handler)) for path, route in routes.items()}


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _host_name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case and without port; None if it is no such thing."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # a port that is none raises
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_host(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # a bracket without the other
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
