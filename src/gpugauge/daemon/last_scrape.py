"""The end after a last scrape: in a pod, the daemon gets SIGTERM in the moment in which the training ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.base.logline import fields
from gpugauge.sessions.session import Session

log = logging.getLogger("gpugauge")

# A training that ends at the same time as the request has closed its connection by then.
_MIN_SECONDS = 0.5
# The response to a scrape is sent within this time.
_RESPONSE_SECONDS = 0.5


class LastScrape:
    """Calls `finish` after the request to stop, or after the last scrape of `sessions`, in the sampler's thread."""

    def __init__(
        self, forecast: ScrapeForecast, sessions: Callable[[], Iterable[Session]], finish: Callable[[], None]
    ) -> None:
        self._forecast, self._sessions, self._finish = forecast, sessions, finish
        self._requested: float | None = None
        self._settled = False
        self._published: float | None = None  # the first snapshot in which every end has its reason
        self._scraped: float | None = None  # when every scraper had requested it

    def request(self, wait_seconds: float) -> None:
        """Finish after a scrape of the ended trainings, or after `wait_seconds`; at once at a second request."""
        if self._requested is not None or not wait_seconds:
            self._finish()
            return
        self._requested = time.monotonic()
        timer = threading.Timer(wait_seconds, self._finish)
        timer.daemon = True
        timer.start()

    def after_tick(self, now: float) -> None:
        """Finish if nothing is left to be scraped. `now` is after the snapshot of the tick was published."""
        if self._requested is None:
            return
        self._forecast.record_viewer(now)  # the next tick is an interval away
        if self._settled and self._published is None:
            self._published = now
            log.info("waiting for a last scrape", extra=fields(since=round(now - self._requested, 1)))
        sessions = list(self._sessions())
        if not sessions:
            self._finish()
        elif self._published is None:
            early = now - self._requested < _MIN_SECONDS
            self._settled = not early and all(each.connected or each.end_reason for each in sessions)
        elif self._scraped is None:
            self._scraped = now if self._forecast.scraped_by_all(self._published, now) else None
        elif now - self._scraped >= _RESPONSE_SECONDS:
            self._finish()
