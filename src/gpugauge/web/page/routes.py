"""Routes for people: the page at `/`, rendered once per snapshot, its files, and the same status as JSON."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpugauge.snapshot import Snapshot
from gpugauge.status.model import Status
from gpugauge.web.page.links import NO_LINKS, Links
from gpugauge.web.page.render import content, head, page, unavailable
from gpugauge.web.server import Reply, Request, Route, sentence

PATH = "/api/v1/status"
# No foreign or inline resources, no framing of the page, no referrer.
HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)
_FILES = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.svg": "image/svg+xml",
}


def page_routes(
    snapshot: Callable[[], Snapshot | None],
    view: Callable[[Snapshot], Status],
    not_ready: Callable[[], str | None],
    telemetry_path: str,
    scenario: str | None = None,
    links: Links = NO_LINKS,
) -> dict[str, Route]:
    """Return the routes. `not_ready` returns the reason, or None if ready; `view` returns the
    status of a snapshot, `scenario` names the simulated one.
    """
    files = {name: Path(__file__).with_name(name).read_bytes() for name in _FILES}
    # An open page reloads itself when the files of the daemon have changed.
    version = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    opening = head(version, telemetry_path, socket.gethostname(), links)
    rendered: tuple[Snapshot | None, tuple[str, str]] = (None, ("", ""))

    def answer(_: Request) -> Reply:
        nonlocal rendered
        reason, current = not_ready(), snapshot()
        if reason or current is None:
            return _html(503, page(opening, unavailable(reason or "there is no snapshot yet", scenario)))
        if current is not rendered[0]:
            rendered = (current, content(view(current), scenario, links))
        before, after = rendered[1]
        age = max(0.0, time.monotonic() - current.monotonic)
        return _html(200, page(opening, f"{before}{age:.0f}{after}"))

    return {"/": Route(answer)} | {f"/{name}": _file(Reply(200, body, _FILES[name])) for name, body in files.items()}


def status_route(snapshot: Callable[[], Snapshot | None], view: Callable[[Snapshot], Mapping[str, Any]]) -> Route:
    """Return the route that replies with the `view` of a snapshot as JSON, or 503 without a fresh snapshot."""

    def answer(_: Request) -> Reply:
        current = snapshot()
        if current is None:
            return sentence(503, "no fresh snapshot")
        body = json.dumps(view(current), allow_nan=False, separators=(",", ":"))
        return Reply(200, body.encode(), "application/json; charset=utf-8", (("Cache-Control", "no-store"),))

    return Route(answer)


def _file(reply: Reply) -> Route:
    return Route(lambda _: reply)


def _html(status_code: int, text: str) -> Reply:
    return Reply(status_code, text.encode(errors="replace"), "text/html; charset=utf-8", HEADERS)
