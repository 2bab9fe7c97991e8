"""The time of the next tick: just before an expected scrape, once per interval while other requests are likely,
otherwise as rarely as the driver's sample rings allow. For other requests, readings are made on demand.
"""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import NamedTuple

# Scrapers that are remembered, and scrapes of each address; the least recent one is dropped first.
_MAX_SCRAPERS, _MAX_SCRAPES = 8, 16
# How much earlier or later than expected a scraper may come: the share of its period, and seconds. One that has missed
# a period is that much less likely.
_JITTER_PERIODS, _MAX_JITTER_SECONDS, _MISSED_SECONDS = 0.15, 1.5, 0.1
# Gaps that differ by less from each other are taken for equal.
_UNEQUAL_SECONDS = 0.2
# By how much its jitter may exceed that of its last scrapes, and what each scrape leaves of this.
_JITTER_MARGIN, _JITTER_FADING = 1.5, 0.9
# The least weights of a scrape in the expected time and in the period. The first scrapes weigh the same.
_LEAST_WEIGHT, _LEAST_PERIOD_WEIGHT = 0.35, 0.05
# Periods without a scrape after which a scraper is gone. It is known again for a quarter as many as its scrapes.
_MAX_MISSED_PERIODS = 3
# Several scrapers behind one address: the scrapes of each that show them, and the share of the jitter of the one that
# they were taken for by which their gaps may differ. One scraper with jitter has equal gaps now and then.
_PHASE_SCRAPES, _PHASE_JITTER = 4, 0.125
# As a share of the interval: how much later a tick may be for a scrape, and the smallest gap between two ticks. An
# earlier scrape is served by the tick before it.
_TOLERANCE_INTERVALS = 0.125
# As a share of the interval: the gap between the ticks while a scrape is likely at any time.
_AGAIN_INTERVALS = 0.8
# What a tick with less work leaves of the time that ticks are expected to take.
_FADING = 0.9
# In intervals: scrapers with a shorter period get no ticks of their own, which would cost more than they are worth.
_MIN_PERIOD_INTERVALS = 0.9
# In intervals: for scrapers with a shorter period no more is read in a tick than is due.
_MIN_READ_INTERVALS = 1.5
# After a request without a period (a person, an open page) another one is likely for this long. An address of which a
# scrape was not expected is awaited 1.5 times the longer of its last two gaps; a gap too long for that does not count.
_VIEWER_SECONDS, _MAX_VIEWER_SECONDS = 15.0, 90.0


class _Scraper(NamedTuple):
    """A scraper that came `last`, without jitter `at`; by how much `early` and `late`; `missed` periods in between."""

    address: str
    last: float
    at: float
    gap: float
    early: float
    late: float
    scrapes: int = 3
    missed: int = 0

    def window(self, rounds: int) -> tuple[float, float]:
        """Return the first and the last time at which it is likely after so many periods."""
        middle = self.at + rounds * self.gap
        return middle - _JITTER_MARGIN * self.early, middle + _JITTER_MARGIN * self.late

    def rounds(self, now: float) -> int:
        """Return the number of periods from its last scrape to one now."""
        return max(1, round((now - self.at) / self.gap))

    def off(self, now: float) -> float:
        """Return by how much a scrape now is later than expected, in seconds."""
        return now - self.at - self.rounds(now) * self.gap

    def covers(self, other: _Scraper) -> bool:
        """Return whether the period of another one is a multiple of this one's, and its next scrapes are expected."""
        first = other.rounds(self.last) + 1
        ats = (other.at + rounds * other.gap for rounds in (first, first + 1))
        multiple = self.address == other.address and other.gap > 1.5 * self.gap
        return multiple and all(abs(self.off(at)) <= _jitter(self.gap) for at in ats)

    def after(self, now: float) -> _Scraper:
        """Return the scraper after a scrape now."""
        rounds, off, n = self.rounds(now), self.off(now), self.scrapes + 1
        at = now - off + max(_LEAST_WEIGHT, (4 * n - 2) / (n * n + n)) * off
        gap = self.gap + max(_LEAST_PERIOD_WEIGHT, 6 / (n * n + n)) * off / rounds
        missed = self.missed + min(rounds - 1, _MAX_MISSED_PERIODS) if rounds > 1 else 0
        if missed > _MAX_MISSED_PERIODS:  # time and again: its period is a longer one now
            gap, missed = rounds * gap, 0
        early, late = max(-off, _JITTER_FADING * self.early), max(off, _JITTER_FADING * self.late)
        return _Scraper(self.address, now, at, gap, early, late, n, missed)


def _jitter(gap: float) -> float:
    return min(_JITTER_PERIODS * gap, _MAX_JITTER_SECONDS)


def _phases(address: str, times: list[float], most: float) -> list[_Scraper]:
    """Return two or more scrapers with one period that come in turn; their gaps differ by `most` seconds at most."""
    for count in range(2, len(times) // _PHASE_SCRAPES + 1):
        last = times[-_PHASE_SCRAPES * count :]
        gaps = [after - before for before, after in zip(last, last[count:], strict=False)]
        off = max(gaps) - min(gaps)
        if off <= most:
            return [_Scraper(address, at, at, sum(gaps) / len(gaps), off / 2, off / 2) for at in times[-count:]]
    return []


def _begin(address: str, seen: dict[float, bool]) -> list[_Scraper]:
    """Return the scraper whose third scrape is the last one of an address, if any: by the most equal gaps of scrapes
    for which none was known. Of such ones it has the shortest period: others can be multiples of it.
    """
    *times, now = seen
    found = (((now - a) / 2, abs(now - 2 * b + a), (a, b)) for a, b in combinations(times, 2))
    fitting = sorted(
        (int(off / _UNEQUAL_SECONDS) + seen[a] + seen[b], gap, off, (a + b + now) / 3)
        for gap, off, (a, b) in found
        if off <= _jitter(gap)
    )
    return [_Scraper(address, now, middle + gap, gap, off / 2, off / 2) for *_, gap, off, middle in fitting[:1]]


class ScrapeForecast:
    """Predicts scrapes from past ones. One thread records, others read. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._scrapes: dict[str, dict[float, bool]] = {}  # by address, the last times, and whether a scraper was known
        self._scrapers: tuple[_Scraper, ...] = ()  # replaced as a whole
        self._last_scrape = -_VIEWER_SECONDS
        self._viewed_until = self._awaited_until = -_VIEWER_SECONDS  # by people, and by scrapers without a period
        self.period = 0.0  # of the scraper whose scrape was expected last
        self.late = False  # whether the last scrape that needed a reading on demand got none in time
        self.ticking = 0.0
        """Seconds that a tick takes: a reading for a scrape must end so much earlier."""

    def record_scrape(self, address: str, now: float) -> bool:
        """Record a scrape from an address, and return whether it was expected at about this time."""
        self._last_scrape = now
        seen = dict([*self._scrapes.pop(address, {}).items(), (now, False)][-_MAX_SCRAPES:])
        self._scrapes[address], times = seen, [*seen]
        if len(self._scrapes) > _MAX_SCRAPERS:
            del self._scrapes[next(iter(self._scrapes))]
        known = [each for each in self._scrapers if each.rounds(now) <= max(_MAX_MISSED_PERIODS, each.scrapes // 4)]
        fitting = [each for each in known if each.address == address and abs(each.off(now)) <= _jitter(each.gap)]
        if fitting:
            seen[now] = True
            old = min(fitting, key=lambda each: abs(each.off(now)) + _MISSED_SECONDS * each.rounds(now))
            self._scrapers, self.period = (*(each for each in known if each is not old), old.after(now)), old.gap
            if abs(old.off(now)) <= _MISSED_SECONDS:
                return True
            most = _PHASE_JITTER * (old.early + old.late)
        else:
            most = _MISSED_SECONDS
            for new in _begin(address, seen):  # two equal gaps can be chance
                known = [*(each for each in known if not new.covers(each)), new]
            self._scrapers = tuple(known[-_MAX_SCRAPERS:])
            gaps = (1.5 * (after - before) for before, after in pairwise(times[-3:]))
            awaited = [seconds for seconds in gaps if seconds <= _MAX_VIEWER_SECONDS]
            self._awaited_until = max(self._awaited_until, now + max([_VIEWER_SECONDS, *awaited]))
        if phases := _phases(address, times, most):
            self._scrapers = (*(each for each in self._scrapers if each.address != address), *phases)[-_MAX_SCRAPERS:]
        return bool(fitting)

    def scraped_by_all(self, since: float, now: float) -> bool:
        """Return whether a scrape was recorded since then, and one of each scraper that is not gone."""
        known = [(scraper.last, scraper.gap) for scraper in self._scrapers]
        lasts = [[*seen][-2:] for seen in self._scrapes.values()]
        known += [(times[-1], times[-1] - times[0]) for times in lasts]  # 0 after a single scrape
        active = [last for last, gap in known if now - last <= (_MAX_MISSED_PERIODS * gap or _MAX_VIEWER_SECONDS)]
        return all(last >= since for last in (*active, self._last_scrape))

    def record_tick(self, seconds: float) -> None:
        """Record how long a tick took. A short one is not followed at once: not all ticks have the same work."""
        self.ticking = max(seconds, _FADING * self.ticking)

    def record_viewer(self, now: float) -> None:
        """Record a request of a person or an open page. Another one is likely within 15 s."""
        self._viewed_until = max(self._viewed_until, now + _VIEWER_SECONDS)

    def has_viewer(self, now: float, interval: float) -> bool:
        """Return whether a request is likely that no reading is made for: of a person, or of a frequent scraper."""
        frequent = _MIN_PERIOD_INTERVALS * interval
        return now < max(self._viewed_until, self.late and self._awaited_until) or any(
            scraper.gap < frequent and now - scraper.last <= max(_MAX_MISSED_PERIODS * scraper.gap, frequent)
            for scraper in self._scrapers
        )

    def expected(self, begin: float, end: float, min_period: float, again: float = 0.0) -> float | None:
        """Return the first time from `begin` to `end` at which a scrape is likely, or None; not before `again` if it is
        since before `begin`. Scrapers with a period below `min_period` seconds do not count.
        """
        due = []
        for scraper in self._scrapers:
            passed = math.ceil((begin - scraper.window(0)[1]) / scraper.gap)
            for rounds in (max(1, passed), max(1, passed) + 1):
                first, last = scraper.window(rounds)
                at = first if first >= begin else max(begin, again)
                if scraper.gap >= min_period and rounds <= _MAX_MISSED_PERIODS and at <= min(last, end):
                    due.append(at)
        return min(due, default=None)

    def next_tick(self, last: float, interval: float, idle: float, lead: float) -> float:
        """Return the time of the tick after `last`: `interval` seconds later, or `idle` seconds later without a viewer;
        but `lead` seconds before a scrape is likely if that is earlier, or shortly after, and again while it is.
        """
        tolerance = _TOLERANCE_INTERVALS * interval
        step = interval if self.has_viewer(last, interval) else max(idle, interval)
        earliest = last + tolerance + lead
        latest, again = last + step + tolerance + lead, last + _AGAIN_INTERVALS * interval + lead
        scrape = self.expected(earliest, latest, _MIN_PERIOD_INTERVALS * interval, again)
        return last + step if scrape is None else scrape - lead

    def is_near(self, now: float, interval: float, lead: float) -> bool:
        """Return whether a scrape is likely to be served from the tick at `now`; its period is above `interval`."""
        return now < self._awaited_until or self.is_expected(now, interval, lead, 0.0)

    def is_expected(self, now: float, interval: float, lead: float, period: float) -> bool:
        """Return whether a scraper with a period of at least about `period` seconds, and more than `interval`, is
        expected to be served from the tick at `now`.
        """
        end = now + lead + _TOLERANCE_INTERVALS * interval
        min_period = max(_MIN_PERIOD_INTERVALS * period, _MIN_READ_INTERVALS * interval)
        return self.expected(now, end, min_period) is not None
