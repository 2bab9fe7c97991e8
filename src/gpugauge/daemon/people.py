"""The routes for people: the status, as a page and as JSON. Loaded for the first request, if there is one."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.daemon.machine import Machine
from gpugauge.driver.nvidia.bus import may_have_gpu
from gpugauge.faults.repair import Site
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, as_json
from gpugauge.status.node import build
from gpugauge.web.page.links import Links
from gpugauge.web.page.routes import PATH, page_routes, status_route
from gpugauge.web.server import Route


def routes(
    settings: Settings,
    machine: Machine,
    history: History,
    snapshot: Callable[[], Snapshot | None],
    not_ready: Callable[[], str | None],
    site: Callable[[], Site],
) -> dict[str, Route]:
    """Return the routes. `not_ready` returns the reason, or None if ready; `site` is the place of the daemon."""
    web = settings.web
    links = Links(web.runbook_url, web.grafana_url, site().url)

    def view(current: Snapshot) -> Status:
        return build(current, history, lambda: may_have_gpu(machine.bus_devices()), site())

    page = page_routes(snapshot, view, not_ready, web.telemetry_path, machine.scenario, links)
    return page | {
        PATH: status_route(lambda: None if not_ready() else snapshot(), lambda current: as_json(view(current)))
    }
