"""What the HTTP server answers: the metrics, the two health checks, and a page that lists them."""

from __future__ import annotations

import html
import time
from collections.abc import Callable

from gpugauge import __version__
from gpugauge.exposition import Exposition
from gpugauge.server import Reply, Request, Route, sentence

# For pages: nothing from elsewhere, no frame around them, no address passed on.
HTML_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>gpugauge</title></head>
<body>
<h1>gpugauge</h1>
{banner}<p>Is PyTorch really using the GPU, how well, and if not, why?</p>
<ul>
<li><a href="{metrics}">Metrics</a> for Prometheus</li>
<li><a href="/-/ready">Readiness</a>: are the metrics fresh?</li>
<li><a href="/-/healthy">Health</a>: does the process answer?</li>
</ul>
<p>Version {version}</p>
</body>
</html>
"""
_BANNER = "<p><strong>Simulated: these GPUs do not exist. Scenario: {scenario}</strong></p>\n"


def standard_routes(
    exposition: Exposition, telemetry_path: str, not_ready: Callable[[], str | None], simulated: str | None = None
) -> dict[str, Route]:
    """Return the table of routes. `not_ready` gives the reason or None; `simulated` is the scenario's name."""
    page = _landing_page(telemetry_path, simulated)

    def metrics(request: Request) -> Reply:
        accept, encoding = request.headers.get("Accept"), request.headers.get("Accept-Encoding")
        response = exposition.respond(accept, encoding, time.monotonic())
        headers = [("Vary", "Accept, Accept-Encoding")]
        if response.content_encoding:
            headers.append(("Content-Encoding", response.content_encoding))
        return Reply(response.status, response.body, response.content_type, tuple(headers))

    def ready(_: Request) -> Reply:
        reason = not_ready()
        return sentence(200, "ready") if reason is None else sentence(503, f"not ready: {reason}")

    return {
        "/": Route(lambda _: page),
        "/-/healthy": Route(lambda _: sentence(200, "healthy")),
        "/-/ready": Route(ready),
        telemetry_path: Route(metrics),
    }


def _landing_page(telemetry_path: str, simulated: str | None) -> Reply:
    banner = _BANNER.format(scenario=html.escape(simulated)) if simulated else ""
    text = _PAGE.format(banner=banner, metrics=html.escape(telemetry_path), version=html.escape(__version__))
    return Reply(200, text.encode(), "text/html; charset=utf-8", HTML_HEADERS)
