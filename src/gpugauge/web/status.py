"""The endpoint `/api/v1/status`: the status of the node as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gpugauge.snapshot import Snapshot
from gpugauge.web.server import Reply, Request, Route, sentence

PATH = "/api/v1/status"


def status_route(snapshot: Callable[[], Snapshot | None], view: Callable[[Snapshot], Mapping[str, Any]]) -> Route:
    """Return the route that replies with the `view` of a snapshot as JSON, or 503 without a fresh snapshot."""

    def answer(_: Request) -> Reply:
        current = snapshot()
        if current is None:
            return sentence(503, "no fresh snapshot")
        body = json.dumps(view(current), allow_nan=False, separators=(",", ":"))
        return Reply(200, body.encode(), "application/json; charset=utf-8", (("Cache-Control", "no-store"),))

    return Route(answer)
