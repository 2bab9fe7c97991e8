"""When the next scrapes are expected, told by those that came: what is read just before a scrape is fresh in it.

A scraper keeps its rhythm to the millisecond. Without one, or with one that comes at random, the daemon ticks at its
own interval.
"""

from __future__ import annotations

# Scrapers remembered; those that came last stay.
_SCRAPERS = 8
# Two gaps of one scraper differ by less than this, in seconds, if it has a rhythm.
_REGULAR = 0.1
# Rhythms that a scraper missed before it is taken to be gone.
_MISSED = 3
# In intervals: a tick may come so much late for a scrape, and so soon after another; what comes sooner is served by it.
_CLOSE = 0.125
# Also in intervals: who scrapes more often gets no ticks of its own, which would cost more than they tell.
_SELDOM = 1.9


class Timetable:
    """One thread tells of scrapes, others ask. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, float]] = {}  # the last time, and the gap before it, by scraper
        self._rhythms: tuple[tuple[float, float], ...] = ()  # the same of those that have a rhythm; replaced as a whole

    def heard(self, scraper: str, now: float) -> None:
        """Take note of a scrape."""
        last, gap = self._heard.pop(scraper, (now, 0.0))
        rhythms = tuple(known for known in self._rhythms if known != (last, gap))
        self._heard[scraper] = (now, now - last)
        if len(self._heard) > _SCRAPERS:
            del self._heard[next(iter(self._heard))]
        regular = now > last and abs(now - last - gap) < _REGULAR
        self._rhythms = (*rhythms, (now, now - last))[-_SCRAPERS:] if regular else rhythms

    def expected(self, begin: float, end: float, least: float) -> float | None:
        """Return when the first scrape from `begin` to `end` is expected, None if none is; scrapers that come more
        often than every `least` seconds do not count.
        """
        due = []
        for last, gap in self._rhythms:
            rounds = max(1, -int((last - begin) // gap))
            if gap >= least and rounds <= _MISSED and last + rounds * gap <= end:
                due.append(last + rounds * gap)
        return min(due, default=None)

    def next_tick(self, last: float, interval: float, lead: float) -> float:
        """Return when to tick after `last`: an interval later, or `lead` seconds before a scrape that is expected
        between a little after `last` and a little after that.
        """
        close = _CLOSE * interval
        scrape = self.expected(last + close + lead, last + interval + close + lead, _SELDOM * interval)
        return last + interval if scrape is None else scrape - lead

    def is_near(self, now: float, interval: float, lead: float) -> bool:
        """Return whether the tick at `now` is the one that a scrape will be served from."""
        return self.expected(now, now + lead + _CLOSE * interval, _SELDOM * interval) is not None
