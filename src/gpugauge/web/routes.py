"""What the HTTP server answers to programs: the metrics and the two health checks; and who looks, for the timetable."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from gpugauge.exposition.render import Exposition
from gpugauge.forecast import Timetable
from gpugauge.web.server import Handler, Reply, Request, Route, sentence


def standard_routes(
    exposition: Exposition, telemetry_path: str, not_ready: Callable[[], str | None], timetable: Timetable | None = None
) -> dict[str, Route]:
    """Return the table of routes. `not_ready` gives the reason or None; the timetable is told of scrapes."""

    def metrics(request: Request) -> Reply:
        accept, encoding = request.headers.get("Accept"), request.headers.get("Accept-Encoding")
        now = time.monotonic()
        if timetable:
            timetable.heard(request.remote, now)
        response = exposition.respond(accept, encoding, now)
        headers = [("Vary", "Accept, Accept-Encoding")]
        if response.content_encoding:
            headers.append(("Content-Encoding", response.content_encoding))
        return Reply(response.status, response.body, response.content_type, tuple(headers))

    def ready(_: Request) -> Reply:
        reason = not_ready()
        return sentence(200, "ready") if reason is None else sentence(503, f"not ready: {reason}")

    return {
        "/-/healthy": Route(lambda _: sentence(200, "healthy")),
        "/-/ready": Route(ready),
        telemetry_path: Route(metrics),
    }


def for_people(routes: Mapping[str, Route], timetable: Timetable) -> dict[str, Route]:
    """Return the routes so that the timetable is told of each request: whoever made it may look again at any time."""

    def heard(handler: Handler) -> Handler:
        def told(request: Request) -> Reply | Awaitable[Reply]:
            timetable.looked(time.monotonic())
            return handler(request)

        return told

    return {path: route._replace(handler=heard(route.handler)) for path, route in routes.items()}
