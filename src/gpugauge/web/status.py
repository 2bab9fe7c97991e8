"""The endpoint `/api/v1/status`: the status of the node as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.node import status
from gpugauge.web.server import Reply, Request, Route, sentence

PATH = "/api/v1/status"


def status_route(snapshot: Callable[[], Snapshot | None], history: History) -> Route:
    """Return the route that replies with status() as JSON, or 503 without a fresh snapshot."""

    def answer(_: Request) -> Reply:
        current = snapshot()
        if current is None:
            return sentence(503, "no fresh snapshot")
        body = json.dumps(status(current, history), allow_nan=False, separators=(",", ":"))
        return Reply(200, body.encode(), "application/json; charset=utf-8", (("Cache-Control", "no-store"),))

    return Route(answer)
