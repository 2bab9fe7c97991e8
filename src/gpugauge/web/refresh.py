"""Readings on demand: a scrape that was not expected requests one, and waits for the snapshot that contains it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from gpugauge.base.forecast import ScrapeForecast

# A scrape waits at most this long, then it gets the snapshot that is there.
WAIT_SECONDS = 0.03
# A scrape does not wait if the reading in the snapshot began at most this long ago. The second limit is for a scrape in
# a burst, and for an expected one: it covers the lead of the reading (driver/reader.py), the reading itself, and the
# jitter of the scrape. Where reading and tick take long, the third limit is added to their time.
_MAX_AGE_SECONDS, _MAX_PREPARED_AGE_SECONDS, _MAX_JITTER_SECONDS = 0.04, 0.16, 0.12
# What a shorter time leaves of the time that reading and tick are expected to take, as in forecast.py.
_FADING = 0.9
# The limit for an expected scrape of a frequent scraper: rings are read every two seconds (forecast.py, is_near).
_MAX_FREQUENT_AGE_SECONDS, _FREQUENT_GAP_SECONDS = 2.4, 1.5
# Readings on demand are limited to this many per second, and this many at once. Only the time between two scrapes that
# are further apart than the gap counts, so that a flood of scrapes causes no readings and waits for none.
_READINGS_PER_SECOND, _MAX_READINGS = 2.0, 2.0
_MIN_GAP_SECONDS = 0.25
# After a reading that came too late there is none on demand for this long, and twice as long each further time.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 300.0


class Refresh:
    """`request` starts a reading, without blocking. All but `publish` is for the server's thread."""

    def __init__(self, request: Callable[[], None], forecast: ScrapeForecast | None = None) -> None:
        self._request, self._forecast = request, forecast or ScrapeForecast()
        self._read_at = -math.inf  # begin of the reading in the current snapshot
        self._took = 0.0  # seconds from there to the snapshot
        self._last_scrape, self._allowed = 0.0, _MAX_READINGS
        self._requested = -math.inf
        self.outstanding = False  # the requested reading may still come in time
        self._pause = 0.0
        self._arrival: asyncio.Event | None = None  # of the requested reading; None while no scrape waits
        self._loop: asyncio.AbstractEventLoop | None = None

    def due(self, now: float, *, expected: bool, period: float = 0.0) -> bool:
        """Record a scrape, and return whether it has to `wait`. `expected`: a reading was scheduled for it."""
        gap, self._last_scrape = now - self._last_scrape, now
        if gap >= _MIN_GAP_SECONDS:
            self._allowed = min(_MAX_READINGS, self._allowed + gap * _READINGS_PER_SECOND)
        if self.outstanding and now >= self._requested + WAIT_SECONDS:
            self._end(late=True)
        age = now - self._read_at
        prepared = max(_MAX_PREPARED_AGE_SECONDS, _MAX_JITTER_SECONDS + self._took)
        limit = prepared if expected or gap < _MIN_GAP_SECONDS else _MAX_AGE_SECONDS
        if expected and max(gap, period) < _FREQUENT_GAP_SECONDS:
            limit = _MAX_FREQUENT_AGE_SECONDS
        if age <= limit or age == math.inf:
            return False
        if self.outstanding:
            return True
        if self._allowed < 1 or now < self._requested + self._pause:
            self._forecast.late = True
            return False
        self._allowed -= 1
        self._requested, self.outstanding = now, True
        self._request()
        return True

    async def wait(self) -> None:
        """Wait for the snapshot with the requested reading, at most WAIT_SECONDS since the request."""
        arrival = self._arrival
        if arrival is None:
            arrival = self._arrival = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            self._loop.call_at(self._requested + WAIT_SECONDS, self._release, arrival)
            if not self.outstanding:  # it has been published since the request
                self._release(arrival)
        await arrival.wait()

    def publish(self, read_at: float, now: float) -> None:
        """Record a snapshot with the reading that began at `read_at`. For the sampler's thread."""
        if read_at > self._read_at:
            self._read_at, self._took = read_at, max(now - read_at, _FADING * self._took)
        if self.outstanding and read_at >= self._requested - _MAX_AGE_SECONDS:
            self._end(late=now >= self._requested + WAIT_SECONDS)
            arrival, loop = self._arrival, self._loop
            if arrival and loop:
                with contextlib.suppress(RuntimeError):  # the server has stopped
                    loop.call_soon_threadsafe(self._release, arrival)

    def _end(self, *, late: bool) -> None:
        self.outstanding, self._forecast.late = False, late
        self._pause = min(max(_MIN_PAUSE_SECONDS, 2 * self._pause), _MAX_PAUSE_SECONDS) if late else 0.0

    def _release(self, arrival: asyncio.Event) -> None:
        arrival.set()
        if self._arrival is arrival:
            self._arrival = None
