"""The time of the next tick: just before an expected scrape, once per interval while requests without a regular period
are likely, otherwise as rarely as the driver's sample rings allow.

Most scrapers keep their period to the millisecond, so that their past requests predict the next ones. For the others,
readings are made on demand (web/refresh.py).
"""

from __future__ import annotations

# Scrapers that are remembered; the least recent one is dropped first.
_MAX_SCRAPERS = 8
# Two gaps of one scraper differ by less than this if it has a period.
_MAX_JITTER_SECONDS = 0.1
# Periods without a scrape after which a scraper is considered gone.
_MAX_MISSED_PERIODS = 3
# As a share of the interval: how much later a tick may be for a scrape, and the smallest gap between two ticks. An
# earlier scrape is served by the tick before it.
_TOLERANCE_INTERVALS = 0.125
# What a tick with less work leaves of the time that ticks are expected to take.
_FADING = 0.9
# In intervals: scrapers with a shorter period get no ticks of their own, which would cost more than they are worth.
_MIN_PERIOD_INTERVALS = 0.9
# In intervals: for scrapers with a shorter period no more is read in a tick than is due.
_MIN_READ_INTERVALS = 1.5
# After a request without a period (a person, an open page) another one is likely for this long. A scraper that has no
# period yet, or lost it, is awaited 1.5 times the longer of its last two gaps; a gap too long for that does not count.
_VIEWER_SECONDS, _MAX_VIEWER_SECONDS = 15.0, 90.0


class ScrapeForecast:
    """Predicts scrapes from past ones. One thread records, others read. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._last_scrapes: dict[str, tuple[float, float]] = {}  # the last time and the gap before it, by scraper
        self._periods: tuple[tuple[float, float], ...] = ()  # the same of those that have a period; replaced as a whole
        self._last_scrape = -_VIEWER_SECONDS
        self._viewed_until = self._awaited_until = -_VIEWER_SECONDS  # by people, and by scrapers without a period
        self.ticking = 0.0
        """Seconds that a tick takes: a reading for a scrape must end so much earlier."""

    def record_scrape(self, scraper: str, now: float) -> bool:
        """Record a scrape, and return whether it was expected at about this time. `scraper` is the address that it came
        from.
        """
        self._last_scrape = now
        last, gap = self._last_scrapes.pop(scraper, (now, 0.0))
        periods = tuple(known for known in self._periods if known != (last, gap))
        had_period = len(periods) < len(self._periods)
        self._last_scrapes[scraper] = (now, now - last)
        if len(self._last_scrapes) > _MAX_SCRAPERS:
            del self._last_scrapes[next(iter(self._last_scrapes))]
        regular = now > last and abs(now - last - gap) < _MAX_JITTER_SECONDS
        self._periods = (*periods, (now, now - last))[-_MAX_SCRAPERS:] if regular else periods
        if not (regular and had_period):  # two equal gaps can be chance
            awaited = [seconds for seconds in (1.5 * (now - last), 1.5 * gap) if seconds <= _MAX_VIEWER_SECONDS]
            self._awaited_until = max(self._awaited_until, now + max([_VIEWER_SECONDS, *awaited]))
        return regular and had_period

    def scraped_by_all(self, since: float, now: float) -> bool:
        """Return whether a scrape was recorded since then, and one of each scraper that is not gone."""
        known = tuple(self._last_scrapes.values())  # of one that has scraped once, no gap is known
        active = [last for last, gap in known if now - last <= (_MAX_MISSED_PERIODS * gap or _MAX_VIEWER_SECONDS)]
        return all(last >= since for last in (*active, self._last_scrape))

    def record_tick(self, seconds: float) -> None:
        """Record how long a tick took. A short one is not followed at once: not all ticks have the same work."""
        self.ticking = max(seconds, _FADING * self.ticking)

    def record_viewer(self, now: float) -> None:
        """Record a request of a person or an open page. Another one is likely within 15 s."""
        self._viewed_until = max(self._viewed_until, now + _VIEWER_SECONDS)

    def has_viewer(self, now: float, interval: float) -> bool:
        """Return whether a request is likely at any time: one without a period was recorded recently, or a scraper has
        a period shorter than `interval` seconds.
        """
        frequent = _MIN_PERIOD_INTERVALS * interval
        return now < max(self._viewed_until, self._awaited_until) or any(
            gap < frequent and now - last <= max(_MAX_MISSED_PERIODS * gap, frequent) for last, gap in self._periods
        )

    def expected(self, begin: float, end: float, min_period: float) -> float | None:
        """Return the time of the first scrape that is expected from `begin` to `end`, or None. Scrapers with a period
        below `min_period` seconds do not count.
        """
        due = []
        for last, gap in self._periods:
            rounds = max(1, -int((last - begin) // gap))
            if gap >= min_period and rounds <= _MAX_MISSED_PERIODS and last + rounds * gap <= end:
                due.append(last + rounds * gap)
        return min(due, default=None)

    def next_tick(self, last: float, interval: float, idle: float, lead: float) -> float:
        """Return the time of the tick after `last`: `interval` seconds later, or `idle` seconds later without a viewer;
        but `lead` seconds before a scrape that is expected earlier than that, or shortly after.
        """
        tolerance = _TOLERANCE_INTERVALS * interval
        step = interval if self.has_viewer(last, interval) else max(idle, interval)
        earliest = last + tolerance + lead
        scrape = self.expected(earliest, last + step + tolerance + lead, _MIN_PERIOD_INTERVALS * interval)
        return last + step if scrape is None else scrape - lead

    def is_near(self, now: float, interval: float, lead: float) -> bool:
        """Return whether a scrape is likely to be served from the tick at `now`: it is expected, or a scraper without a
        period is active. Scrapers with a period of about `interval` seconds or less do not count: a reading for each of
        their scrapes would cost more than it is worth.
        """
        return now < self._awaited_until or self.is_expected(now, interval, lead, 0.0)

    def is_expected(self, now: float, interval: float, lead: float, period: float) -> bool:
        """Return whether a scraper with a period of at least `period` seconds, and more than about `interval`, is
        expected to be served from the tick at `now`.
        """
        end = now + lead + _TOLERANCE_INTERVALS * interval
        return self.expected(now, end, max(period, _MIN_READ_INTERVALS * interval)) is not None
