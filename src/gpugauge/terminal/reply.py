"""The status of a running daemon, as the commands read it: once, or again and again in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpugauge.base.guard import Loop
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


@dataclass(frozen=True, slots=True)
class LastStatus:
    """The last status, None before the first, and why there is no newer one; None if there is."""

    status: Status | None = None
    trouble: str | None = None


class Feed:
    """`latest` is replaced after each request; `error` is the exception of `fetch` that is shown and retried."""

    def __init__(self, fetch: Callable[[], Status], error: type[Exception], interval_seconds: float) -> None:
        self._fetch, self._error, self._interval_seconds = fetch, error, interval_seconds
        self._stopped = threading.Event()
        self.latest = LastStatus()

    def start(self) -> None:
        """Begin to ask, until the program ends or `stop`."""
        Loop("status", self.ask, self._stopped, wait=lambda: self._stopped.wait(self._interval_seconds)).start()

    def stop(self) -> None:
        """End after the present request."""
        self._stopped.set()

    def ask(self) -> None:
        """Ask once, and keep the earlier status if there is no answer."""
        try:
            self.latest = LastStatus(self._fetch())
        except self._error as error:
            self.latest = LastStatus(self.latest.status, str(error))
