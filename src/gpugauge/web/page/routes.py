"""What answers at `/`: the page, made once per snapshot however many people look, and its own few files."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.node import status
from gpugauge.web.page.render import content, head, page, unavailable
from gpugauge.web.server import Reply, Request, Route

# Nothing from elsewhere, nothing inline, no frame around the page, no address passed on.
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
    history: History,
    not_ready: Callable[[], str | None],
    telemetry_path: str,
    scenario: str | None = None,
) -> dict[str, Route]:
    """Return the routes. `not_ready` gives the reason or None; `scenario` is the name of what is simulated."""
    bodies = {name: Path(__file__).with_name(name).read_bytes() for name in _FILES}
    # An open page loads itself again when a daemon with other files answers.
    version = hashlib.sha256(b"".join(bodies.values())).hexdigest()[:12]
    opening = head(version, telemetry_path)
    made: tuple[Snapshot | None, tuple[str, str]] = (None, ("", ""))

    def answer(_: Request) -> Reply:
        nonlocal made
        reason, current = not_ready(), snapshot()
        if reason or current is None:
            return _html(503, page(opening, unavailable(reason or "there is no snapshot yet", scenario)))
        if current is not made[0]:
            made = (current, content(status(current, history), scenario))
        before, after = made[1]
        age = max(0.0, time.monotonic() - current.monotonic)
        return _html(200, page(opening, f"{before}{age:.0f}{after}"))

    return {"/": Route(answer)} | {f"/{name}": _file(Reply(200, body, _FILES[name])) for name, body in bodies.items()}


def _file(reply: Reply) -> Route:
    return Route(lambda _: reply)


def _html(status_code: int, text: str) -> Reply:
    return Reply(status_code, text.encode(errors="replace"), "text/html; charset=utf-8", HEADERS)
