"""The page of a simulated node, as the daemon serves it, without waiting: the scenario runs in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpugauge.faults.repair import ANY_SITE, Site
from gpugauge.simulator.scenario.load import Scenario
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.node import build
from gpugauge.web.page.links import Links
from gpugauge.web.page.routes import PATH, page_routes, status_route
from gpugauge.web.server import Server
from tests.simulation import status
from tests.virtual import VirtualDaemon

LINKS = Links("https://docs.example/runbook.md", "https://grafana.example/")


@dataclass
class Page:
    """A served page. `snapshot` may be replaced: the next request gets it."""

    url: str
    snapshot: Snapshot
    advance: Callable[[float], None]


@contextmanager
def served(
    snapshot: Snapshot,
    history: History,
    scenario: str | None = None,
    links: Links = LINKS,
    place: Site = ANY_SITE,
) -> Iterator[Page]:
    """Serve the page of a snapshot on a free port. `place` is that of the daemon, for the steps of a repair."""
    page = Page("", snapshot, lambda _: None)

    def current() -> Snapshot:
        return replace(page.snapshot, monotonic=time.monotonic())

    view = partial(build, history=history, site=place)
    routes = page_routes(current, view, lambda: None, "/metrics", scenario, links)
    routes[PATH] = status_route(current, partial(status, history=history))
    server = Server([("127.0.0.1", 0)], routes)
    server.start()
    page.url = f"http://127.0.0.1:{server.addresses[0][1]}/"
    try:
        yield page
    finally:
        server.stop()


@contextmanager
def simulated(scenario: Scenario, folder: Path, seconds: float, place: Site = ANY_SITE) -> Iterator[Page]:
    """Serve the page of a scenario after some seconds of virtual time; `advance` adds further ones."""
    folder.mkdir()
    daemon = VirtualDaemon(scenario, folder)
    try:
        snapshot = [daemon.second() for _ in range(int(seconds))][-1]
        with served(snapshot, daemon.history, scenario.name, place=place) as page:

            def advance(more: float) -> None:
                page.snapshot = [daemon.second() for _ in range(int(more))][-1]

            page.advance = advance
            yield page
    finally:
        daemon.close()
