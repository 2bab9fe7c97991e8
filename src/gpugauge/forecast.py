"""When the next tick is worth its cost: just before a scrape that is expected, often while somebody looks whose next
look cannot be foreseen, and else as rarely as the driver's rings allow.

A scraper keeps its rhythm to the millisecond; those that came tell when the next ones come.
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
# Seconds for which somebody may come again who came without a rhythm: a person or an open page; and a scraper that has
# none yet or lost it, which is awaited half as long again as it stayed away. One that stayed away for longer is new.
_ATTENTION, _LONGEST_ATTENTION = 15.0, 90.0


class Timetable:
    """One thread tells of scrapes, others ask. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, float]] = {}  # the last time, and the gap before it, by scraper
        self._rhythms: tuple[tuple[float, float], ...] = ()  # the same of those that have a rhythm; replaced as a whole
        self._watched_until = -_ATTENTION

    def heard(self, scraper: str, now: float) -> None:
        """Take note of a scrape."""
        last, gap = self._heard.pop(scraper, (now, 0.0))
        rhythms = tuple(known for known in self._rhythms if known != (last, gap))
        self._heard[scraper] = (now, now - last)
        if len(self._heard) > _SCRAPERS:
            del self._heard[next(iter(self._heard))]
        regular = now > last and abs(now - last - gap) < _REGULAR
        self._rhythms = (*rhythms, (now, now - last))[-_SCRAPERS:] if regular else rhythms
        if not regular:
            awaited = 1.5 * (now - last)
            self.looked(now, awaited if awaited <= _LONGEST_ATTENTION else 0.0)

    def looked(self, now: float, seconds: float = 0.0) -> None:
        """Take note of somebody who looks now, and may again at any time within `seconds` or a little longer."""
        self._watched_until = max(self._watched_until, now + max(_ATTENTION, seconds))

    def watched(self, now: float, interval: float) -> bool:
        """Whether somebody may look at any time: a look was heard of that cannot be foreseen, or a scraper comes about
        every `interval` seconds.
        """
        often = _SELDOM * interval
        return now < self._watched_until or any(
            gap < often and now - last <= max(_MISSED * gap, often) for last, gap in self._rhythms
        )

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

    def next_tick(self, last: float, interval: float, idle: float, lead: float) -> float:
        """Return when to tick after `last`: an interval later, or `idle` seconds if nobody may look at any time; but
        `lead` seconds before a scrape that is expected between a little after `last` and a little after that.
        """
        close, step = _CLOSE * interval, interval if self.watched(last, interval) else max(idle, interval)
        scrape = self.expected(last + close + lead, last + step + close + lead, _SELDOM * interval)
        return last + step if scrape is None else scrape - lead

    def is_near(self, now: float, interval: float, lead: float) -> bool:
        """Return whether the tick at `now` is the one that a scrape will be served from."""
        return self.expected(now, now + lead + _CLOSE * interval, _SELDOM * interval) is not None
