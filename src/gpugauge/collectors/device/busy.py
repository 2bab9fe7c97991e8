"""Busy seconds of one engine, integrated from every sample that the driver kept.

The driver's sample clock is trusted for the time between two neighbouring samples and for nothing else: our own
monotonic clock bounds what is credited, so a clock that jumps neither makes time nor loses it silently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from gpugauge.metric import HistogramValue

# Bounds of the distribution of samples: idle, nearly idle, and the last tenth in steps.
BUCKETS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.8, 0.9, 0.95, 1.0)
_BUCKET = tuple(bisect_left(BUCKETS, percent / 100) for percent in range(101))

_FIRST_PERIOD = 1 / 6  # until the ring tells its own: nvml.h names 1/6 s to 1 s by product
_LONGEST_PERIOD = 1.25  # samples further apart are no neighbours
_LONGEST_POLL = 120.0
_GAP = 2.5  # sample periods between two samples that still tile time
_IDLE_GAP = 1.5  # the same after a sample of zero, where a driver that stops keeping zeros leaves the gap
_STEP = 0.25  # sample periods by which Unix time must move to be a clock that was set
_RING = 64  # sample periods that a ring surely holds: the smallest known has 72 entries
_REMEMBERED = 31  # distances between neighbours, of which the lower quartile is the period: gaps only lengthen them
_RELEARN = 16  # new distances after which the period is taken again
_BLIND = 30.0  # seconds; by then the worker has read the whole ring again
_RECENT = 5.0  # seconds of the mean that is shown as a gauge

# [µs on the driver's clock, percent], as the worker sends them.
Samples = Sequence[list[int]]


class EngineAccount:
    """Seconds in which one engine was busy, was observed, and was not. All three only rise, and the last two add up to
    the time since the first drain, within one sample period.
    """

    def __init__(self, *, polled: bool = False, distribution: bool = True) -> None:
        """`distribution`: whether anybody will ask for the histogram."""
        self.busy = self.observed = self.unobserved = 0.0
        self._distribution = distribution
        self._counts = [0] * (len(BUCKETS) + 1)
        self._percents = 0
        self._idle_samples = 0.0
        self._start: float | None = None
        self._drained = 0.0
        self._recent: deque[tuple[float, float, float]] = deque()
        self.restart(polled=polled)

    def restart(self, *, polled: bool) -> None:
        """Go on from another source: a sample ring, or the driver's last percentage polled. The next drain seeds."""
        self._longest = _LONGEST_POLL if polled else _LONGEST_PERIOD
        self._seeded = False
        self._last, self._level = 0, 100  # of the last sample: µs on the driver's clock, percent
        self._period = _FIRST_PERIOD
        self._distances: deque[float] = deque(maxlen=_REMEMBERED)
        self._unlearned, self._learned = 0, False
        self._presumed = 0.0  # idle seconds counted since the last sample
        self._idle = False  # since the last sample a dry ring and a percentage of 0 agreed
        self._blind_until = 0.0  # the ring was dry although the engine worked: it is not believed for a while
        self._offset: float | None = None  # Unix time less monotonic time
        self._hidden_until = 0.0  # a clock set back hides new samples behind old ones until then
        self._hidden = False  # it did so since the drain before
        self._stepped = 0  # drains in which a clock that was set may show between two samples

    @property
    def histogram(self) -> HistogramValue:
        """The samples as ratios by BUCKETS; observed idle gaps count as samples of zero."""
        cumulative, total = [], 0
        for count in self._counts:
            total += count
            cumulative.append(total)
        return HistogramValue(tuple(cumulative), self._percents / 100)

    @property
    def _next(self) -> float:
        """Seconds that the next sample is left to tell: one period, none while its length is not known."""
        return self._period if self._learned else 0.0

    def mean(self, now: float) -> float | None:
        """Return the busy share of about the last 5 s observed, None if nothing was observed in them."""
        recent = self._recent
        while len(recent) > 1 and recent[1][0] <= now - _RECENT:
            recent.popleft()
        if not recent or self.observed <= recent[0][2]:
            return None
        return min(1.0, (self.busy - recent[0][1]) / (self.observed - recent[0][2]))

    def poll(self, percent: int, now: float) -> None:
        """Take one polled percentage for the time since the poll before; `now` in monotonic seconds."""
        self.drain([[round(now * 1e6), percent]], now, percent)

    def drain(
        self, samples: Samples, now: float, percent: int | None, unix: float | None = None, *, anew: bool = False
    ) -> None:
        """Take the samples of one drain, whole rings again included; `percent` is what the driver says of its last
        sample period, None if it does not; `now` and `unix` are the drain's monotonic and Unix time in seconds. `anew`
        tells that a new worker opened the driver and read its whole ring, which may be another than before.
        """
        if self._start is None:
            self._start = self._drained = now
        self._watch_clock(now, unix)
        # A late drain may have found the ring overrun: what stood before its oldest sample is lost.
        timely = now - self._drained <= _RING * self._period
        trusted = timely and not (anew or self._hidden or self._stepped)
        self._drained = now
        if anew and all(s[0] != self._last for s in samples):
            self._last = 0  # another ring, with a clock of its own
        last = self._last
        fresh = [s for s in samples if s[0] > last and 0 <= s[1] <= 100] if samples else []
        mixed = self._hidden and any(b[0] < a[0] for a, b in pairwise(fresh))  # from before and after a clock was set
        fresh.sort()
        if not self._seeded:
            self._idle = not fresh and percent == 0
            self._seed(fresh)
            self._decide(self._missing(now), idle=False)
        elif mixed:
            self._last, self._level = fresh[-1]
            self._decide(self._missing(now), idle=False)
        elif fresh:
            gaps, idle_gaps = self._credit(fresh, now - self._start)
            if gaps:
                self._settle_gaps(now, gaps, idle_gaps if trusted else 0.0)
            self._presumed, self._idle, self._blind_until = 0.0, False, 0.0
            self._settle_rest(now, percent, fresh=True, trusted=trusted)
        elif self._begun_anew(samples):
            self._idle = False
            self._decide(self._missing(now), idle=False)
        else:
            self._settle_rest(now, percent, fresh=False, trusted=trusted)
        self._recent.append((now, self.busy, self.observed))
        if len(self._recent) > 8:
            self.mean(now)  # forgets what is too old

    def _watch_clock(self, now: float, unix: float | None) -> None:
        """Sample clocks that follow Unix time are set with it. Set back, the ring then looks dry for as long; set
        forward, two neighbours look further apart than they are.
        """
        if unix is None:
            return
        offset, before = unix - now, self._offset
        self._offset = offset
        self._stepped = max(0, self._stepped - 1)
        if before is not None and abs(before - offset) > _STEP * self._period:
            self._stepped = 2
            if offset < before:
                self._hidden_until = now + before - offset
        self._hidden = self._drained < self._hidden_until

    def _learn(self, distances: list[float]) -> None:
        """Take in the distances between neighbours, and from time to time the period that they tell."""
        self._distances += distances
        self._unlearned += len(distances)
        if self._unlearned and (self._unlearned >= _RELEARN or len(self._distances) < _REMEMBERED):
            self._unlearned, self._learned = 0, len(self._distances) > 1  # one may be across a clock that was set
            self._period = sorted(self._distances)[len(self._distances) // 4]

    def _learn_first(self, samples: Samples) -> None:
        """Learn the period before the first samples are counted."""
        distances = [(b[0] - a[0]) * 1e-6 for a, b in pairwise(samples)]
        self._learn([distance for distance in distances if 0 < distance <= self._longest])

    def _seed(self, samples: Samples) -> None:
        """Start behind the samples that are there already."""
        self._seeded = True
        if samples:
            self._learn_first(samples)
            self._learned = bool(self._distances)
            self._last, self._level = samples[-1]

    def _credit(self, fresh: Samples, wall: float) -> tuple[float, float]:
        """Count each sample for the time since its neighbour, or for one period after a gap, within the wall time.
        Return the seconds of all gaps and of those that are idle, by the driver's clock.
        """
        before, level, idle, counts = self._last or -inf, self._level, self._idle, self._counts
        learned = self._learned
        if not learned:
            self._learn_first([[self._last, level], *fresh] if self._last else fresh)
        if not (self._last and self._learned):
            level, idle = 100, False  # how much time there was before this sample, nobody can say
        period, longest = self._period, self._longest
        idle_limit = _IDLE_GAP * period
        limit = idle_limit if self._stepped else _GAP * period
        seconds = weighted = gaps = idle_gaps = 0.0
        distances, percents, distributed = [], 0, self._distribution
        for ts, percent in fresh:
            width = (ts - before) * 1e-6
            if width <= 0:
                continue  # the same sample twice
            if width <= longest:
                distances.append(width)
            if width > idle_limit and (width > limit or not level):
                gaps += width - period
                if idle or not level:
                    idle_gaps += width - period
                width = period
            before, level, idle = ts, percent, False
            seconds += width
            weighted += width * percent
            if distributed:
                counts[_BUCKET[percent]] += 1
                percents += percent
        self._percents += percents
        self._last, self._level = fresh[-1]
        if learned:
            self._learn(distances)
        room = max(0.0, wall + self._next - self.observed - self.unobserved)
        counted = min(seconds, room)
        # What was already presumed idle turns out to be busy: it is observed, but was not counted as busy.
        corrected = min(seconds - counted, self._presumed)
        self.observed += counted
        self.busy += weighted / 100 * (counted + corrected) / seconds
        return gaps, idle_gaps

    def _begun_anew(self, samples: Samples) -> bool:
        """Whether all samples are behind the last: the driver was loaded again, or its clock was set back.
        Goes on from the newest then. A new worker reads the whole ring again, but the last sample with it.
        """
        newest = max((s[0] for s in samples if s[0] > 0 and 0 <= s[1] <= 100), default=self._last)
        if newest >= self._last:
            return False
        self._last, self._hidden_until, self._hidden = newest, 0.0, False
        return True

    def _missing(self, now: float) -> float:
        """Seconds of the wall time that are neither observed nor unobserved yet."""
        assert self._start is not None
        return max(0.0, now - self._start - self.observed - self.unobserved)

    def _settle_gaps(self, now: float, gaps: float, idle: float) -> None:
        """Decide what lies before the newest sample: `gaps` seconds, `idle` of them idle."""
        gaps, idle = max(0.0, gaps - self._presumed), max(0.0, idle - self._presumed)
        decided = min(gaps, self._missing(now))
        self._decide(min(idle, decided), idle=True)
        self._decide(max(0.0, decided - idle), idle=False)

    def _settle_rest(self, now: float, percent: int | None, *, fresh: bool, trusted: bool) -> None:
        """Decide what lies behind the newest sample, but for the one period that the next sample ends: a ring that is
        dry while the driver says 0 percent is an idle engine's. What else is older is not observed; should a sample
        come for it after all, it is counted in full and the wall time bounds the sum.
        """
        older = self._missing(now) - self._next
        if older <= 0:
            return
        if percent == 0 and trusted and now >= self._blind_until:
            self._idle = True
            self._presumed += older
            self._decide(older, idle=True)
            return
        if older > self._period and not (fresh and trusted):
            self._idle = False
            if percent and not fresh:
                self._blind_until = now + _BLIND
        self._decide(older, idle=False)

    def _decide(self, seconds: float, *, idle: bool) -> None:
        if not idle:
            self.unobserved += seconds
            return
        self.observed += seconds
        self._idle_samples += seconds / self._period
        whole = int(self._idle_samples)
        self._counts[0] += whole
        self._idle_samples -= whole
