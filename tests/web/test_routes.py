import time

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.exposition.render import Exposition
from gpugauge.web.routes import for_people, late, standard_routes
from gpugauge.web.server import Reply, Request, Route
from tests.serving import SNAPSHOT, answer

INTERVAL = 1.0


def request(path: str) -> Request:
    return Request("GET", path, "", {}, b"", "127.0.0.1")


def test_request_for_the_page_is_recorded_as_a_viewer() -> None:
    forecast = ScrapeForecast()
    routes = for_people({"/": Route(lambda _: Reply(200, b"page"), ("GET", "POST"))}, forecast)

    reply = answer(routes["/"], request("/"))

    assert (reply.body, routes["/"].methods) == (b"page", ("GET", "POST"))
    assert forecast.has_viewer(time.monotonic(), INTERVAL)


def test_health_checks_are_no_viewers() -> None:
    forecast, exposition = ScrapeForecast(), Exposition(stale_after=3600)
    forecast.late = True  # otherwise a scrape gets its reading on demand
    exposition.publish(SNAPSHOT)
    routes = standard_routes(exposition, "/metrics", lambda: None, forecast)

    for path in ("/-/healthy", "/-/ready"):
        answer(routes[path], request(path))
    checked = forecast.has_viewer(time.monotonic(), INTERVAL)
    answer(routes["/metrics"], request("/metrics"))

    assert not checked
    assert forecast.has_viewer(time.monotonic(), INTERVAL)


def test_late_routes_are_made_once_for_the_first_request() -> None:
    made = []

    def make() -> dict[str, Route]:
        made.append(1)
        return {path: Route(lambda request: Reply(200, request.path.encode())) for path in ("/", "/a")}

    routes = late(("/", "/a"), make)

    assert not made
    assert [answer(routes[path], request(path)).body for path in ("/", "/a", "/")] == [b"/", b"/a", b"/"]
    assert made == [1]
