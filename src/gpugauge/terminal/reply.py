"""The status of a running daemon, as the commands read it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from gpugauge.status.model import Status, decoded
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import processes
from gpugauge.terminal.table import table
from gpugauge.web.client import RequestError, request

_PATH = "/api/v1/status"
_TIMEOUT_SECONDS = 5.0
_MAX_BODY_BYTES = 64 << 20


class Reply(NamedTuple):
    """An answer of a daemon, and the JSON from which it was read."""

    status: Status
    document: dict[str, Any]


def fetch(url: str) -> Reply:
    """Return the status of the daemon at `url`, which may be the address of its metrics. Raises RequestError, also if
    it is none that can be drawn.
    """
    url = url.rstrip("/").removesuffix("/metrics") + _PATH
    found = read(request(url, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BODY_BYTES))
    if found is None:
        raise RequestError(f"{url} does not answer as gpugauge does")
    return found


def read(body: bytes) -> Reply | None:
    """Return the status in the body of an answer, None if it is none that can be drawn."""
    try:
        document: dict[str, Any] = json.loads(body)
        status = decoded(Status, document)
        for verbose in (False, True):
            table(status, False, status.timestamp, 200, verbose=verbose)
        for process in processes(status)[:20]:  # all of a large node would take a second
            process_screen(process, status.timestamp, 200, colour=False)
    except Exception:  # noqa: BLE001  (whatever a document of a stranger leads to)
        return None
    return Reply(status, document)
