"""The status of a daemon, asked for again and again in a thread: a daemon that hangs must not stop the keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gpugauge.base.guard import Loop
from gpugauge.status.model import Status


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
