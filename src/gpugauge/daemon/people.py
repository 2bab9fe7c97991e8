"""The routes for people, with all that only they need: the status of the node, as a page and as JSON. Most nodes are
never asked for them, so the daemon loads this module for the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpugauge.daemon.machine import Machine
from gpugauge.driver.nvidia.bus import may_have_gpu
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import as_json
from gpugauge.status.node import build
from gpugauge.web.page.links import Links, daemon_address
from gpugauge.web.page.routes import page_routes
from gpugauge.web.server import Route
from gpugauge.web.status import PATH, status_route


def routes(
    settings: Settings,
    machine: Machine,
    history: History,
    snapshot: Callable[[], Snapshot | None],
    not_ready: Callable[[], str | None],
    scheme: str,
) -> dict[str, Route]:
    """Return the routes. `not_ready` returns the reason, or None if ready; `scheme` is that of the server."""
    web, first = settings.web, settings.web.listen_address[0]
    links = Links(web.runbook_url, web.grafana_url, daemon_address(scheme, first.host, first.port))
    view = partial(build, history=history, may_have_gpu=lambda: may_have_gpu(machine.bus_devices()))
    page = page_routes(snapshot, view, not_ready, web.telemetry_path, machine.scenario, links)
    return page | {
        PATH: status_route(lambda: None if not_ready() else snapshot(), lambda current: as_json(view(current)))
    }
