import time

from gpugauge.exposition.render import Exposition
from gpugauge.forecast import Timetable
from gpugauge.web.routes import for_people, standard_routes
from gpugauge.web.server import Reply, Request, Route
from tests.serving import SNAPSHOT, answer

INTERVAL = 1.0


def request(path: str) -> Request:
    return Request("GET", path, "", {}, b"", "127.0.0.1")


def test_who_asks_for_the_page_is_somebody_who_looks() -> None:
    timetable = Timetable()
    routes = for_people({"/": Route(lambda _: Reply(200, b"page"), ("GET", "POST"))}, timetable)

    reply = answer(routes["/"], request("/"))

    assert (reply.body, routes["/"].methods) == (b"page", ("GET", "POST"))
    assert timetable.watched(time.monotonic(), INTERVAL)


def test_health_checks_are_nobody_who_looks() -> None:
    timetable, exposition = Timetable(), Exposition(stale_after=3600)
    exposition.publish(SNAPSHOT)
    routes = standard_routes(exposition, "/metrics", lambda: None, timetable)

    for path in ("/-/healthy", "/-/ready"):
        answer(routes[path], request(path))
    checked = timetable.watched(time.monotonic(), INTERVAL)
    answer(routes["/metrics"], request("/metrics"))

    assert not checked
    assert timetable.watched(time.monotonic(), INTERVAL)
