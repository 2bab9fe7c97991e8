"""Routes for programs: metrics and health checks. Their requests are recorded in the scrape forecast."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from urllib.parse import parse_qs

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.exposition.render import Exposition, Only, Response
from gpugauge.snapshot import Snapshot
from gpugauge.web.refresh import Refresh
from gpugauge.web.server import Handler, Reply, Request, Route, sentence

# The page with its files, and the status as JSON.
FOR_PEOPLE = ("/", "/page.js", "/page.css", "/page.svg", "/api/v1/status")


def standard_routes(
    exposition: Exposition,
    telemetry_path: str,
    not_ready: Callable[[], str | None],
    forecast: ScrapeForecast | None = None,
    note: Callable[[], str] = lambda: "",
    refresh: Refresh | None = None,
) -> dict[str, Route]:
    """Return the routes. `not_ready` returns the reason, or None; `note` what is worth knowing of one that is ready."""

    def metrics(request: Request, now: float) -> Response:
        accept, encoding = request.headers.get("accept"), request.headers.get("accept-encoding")
        query = parse_qs(request.query)
        only = Only(frozenset(query.get("process", ())), frozenset(query.get("job", ())))
        return exposition.respond(accept, encoding, now, sparse="omit" in query.get("zeros", ()), only=only)

    def ready(_: Request) -> Reply:
        reason = not_ready()
        if reason is not None:
            return sentence(503, f"not ready: {reason}")
        return sentence(200, f"ready, but {found}" if (found := note()) else "ready")

    return {
        "/-/healthy": Route(lambda _: sentence(200, "healthy")),
        "/-/ready": Route(ready),
        telemetry_path: scrape_route(metrics, forecast, refresh),
    }


def dcgm_route(
    snapshot: Callable[[], Snapshot | None],
    not_ready: Callable[[], str | None],
    hostname: str,
    forecast: ScrapeForecast,
    refresh: Refresh,
) -> Route:
    """Return the route of the metrics under dcgm-exporter's names. It returns 503 while there is no fresh snapshot."""
    from gpugauge.exposition.dcgm import DcgmExposition  # noqa: PLC0415  (not loaded without web.enable_dcgm)

    exposition = DcgmExposition(hostname)

    def metrics(request: Request, _: float) -> Response:
        reason, current = not_ready(), snapshot()
        if reason is not None or current is None:
            return Response(f"not ready: {reason}\n".encode(), "text/plain; charset=utf-8", None, 503)
        return exposition.respond(current, request.headers.get("accept-encoding"))

    return scrape_route(metrics, forecast, refresh)


def scrape_route(
    respond: Callable[[Request, float], Response], forecast: ScrapeForecast | None, refresh: Refresh | None
) -> Route:
    """Return a route whose requests are recorded as scrapes. `respond` gets the request and the monotonic time."""

    def scrape(request: Request) -> Reply | Awaitable[Reply]:
        now = time.monotonic()
        expected = bool(forecast and forecast.record_scrape(request.remote, now))
        if refresh and refresh.due(now, expected=expected, period=forecast.period if forecast else 0.0):
            return refreshed(request, refresh)
        return reply(request, now)

    async def refreshed(request: Request, refresh: Refresh) -> Reply:
        await refresh.wait()
        return reply(request, time.monotonic())

    def reply(request: Request, now: float) -> Reply:
        response = respond(request, now)
        headers = [("Vary", "Accept, Accept-Encoding")]
        if response.content_encoding:
            headers.append(("Content-Encoding", response.content_encoding))
        return Reply(response.status, response.body, response.content_type, tuple(headers))

    return Route(scrape)


def for_people(routes: Mapping[str, Route], forecast: ScrapeForecast) -> dict[str, Route]:
    """Return the routes with handlers that record each request as a viewer: a person may reload at any time."""

    def record_and_handle(handler: Handler, request: Request) -> Reply | Awaitable[Reply]:
        forecast.record_viewer(time.monotonic())
        return handler(request)

    return {path: route._replace(handler=partial(record_and_handle, route.handler)) for path, route in routes.items()}


def late(paths: Iterable[str], make: Callable[[], Mapping[str, Route]]) -> dict[str, Route]:
    """Return the routes of `paths`, which `make` creates for the first request to one of them."""
    made = cache(make)

    def answer(path: str, request: Request) -> Reply | Awaitable[Reply]:
        return made()[path].handler(request)

    return {path: Route(partial(answer, path)) for path in paths}
