"""Busy seconds of one engine, integrated from all samples that the driver keeps.

The driver's sample clock is used only for the time between two consecutive samples. The daemon's monotonic clock bounds
the sum, so that a clock that jumps neither adds time nor loses time without counting it as unobserved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from gpugauge.metric import HistogramValue

# Bounds of the distribution of samples: idle, nearly idle, and finer steps in the last tenth.
BUCKETS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.8, 0.9, 0.95, 1.0)
_BUCKET = tuple(bisect_left(BUCKETS, percent / 100) for percent in range(101))

_INITIAL_PERIOD_SECONDS = 1 / 6  # until it is learned from the samples: 1/6 s to 1 s by product, see nvml.h
_MAX_PERIOD_SECONDS = 1.25  # samples further apart are not consecutive
_MAX_POLL_PERIOD_SECONDS = 120.0
_GAP_PERIODS = 2.5  # a longer distance between two samples is a gap
_IDLE_GAP_PERIODS = 1.5  # the same after a sample of zero: some drivers do not keep further zeros
_CLOCK_STEP_PERIODS = 0.25  # a larger change of Unix time against monotonic time is a clock that was set
_RING_PERIODS = 64  # capacity of a sample ring, at least: the smallest known ring has 72 entries
_MAX_DISTANCES = 31  # of samples; the lower quartile of the last ones is the period, since gaps only lengthen them
_RELEARN_DISTANCES = 16  # new distances after which the period is computed again
_DISTRUST_SECONDS = 30.0  # after an empty ring of a busy engine; by then the worker has read the whole ring again
_MEAN_SECONDS = 5.0  # interval of the mean that is exported as a gauge

# [µs on the driver's clock, percent], as in the worker's replies.
Samples = Sequence[list[int]]


class EngineAccount:
    """Seconds in which one engine was busy, was observed, and was not observed. All three only rise."""

    def __init__(self, *, polled: bool = False, distribution: bool = True) -> None:
        """`distribution`: whether the histogram is computed."""
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
        """Continue with another source, behind the samples of its next drain: a ring, or percentages polled."""
        self._max_period = _MAX_POLL_PERIOD_SECONDS if polled else _MAX_PERIOD_SECONDS
        self._seeded = False
        self._last, self._level = 0, 100  # of the last sample: µs on the driver's clock, percent
        self._period = _INITIAL_PERIOD_SECONDS
        self._distances: deque[float] = deque(maxlen=_MAX_DISTANCES)
        self._unlearned, self._learned = 0, False
        self._presumed = 0.0  # idle seconds counted since the last sample
        self._idle = False  # since the last sample, the ring had no new samples and the percentage was 0
        self._distrusted_until = 0.0  # the ring had no new samples although the engine was busy
        self._offset: float | None = None  # Unix time less monotonic time
        self._hidden_until = 0.0  # after a clock was set back, new samples have old stamps until then
        self._hidden = False  # that was so since the last drain
        self._stepped = 0  # drains whose samples can contain the step of a clock that was set

    @property
    def histogram(self) -> HistogramValue:
        """The samples as ratios by BUCKETS; observed idle gaps are counted as samples of zero."""
        cumulative, total = [], 0
        for count in self._counts:
            total += count
            cumulative.append(total)
        return HistogramValue(tuple(cumulative), self._percents / 100)

    @property
    def _next(self) -> float:
        """Seconds that the next sample covers: one period, 0 while the period is not known."""
        return self._period if self._learned else 0.0

    def mean(self, now: float) -> float | None:
        """Return the busy share of the last 5 s, 0 to 1; None if nothing was observed in them."""
        recent = self._recent
        while len(recent) > 1 and recent[1][0] <= now - _MEAN_SECONDS:
            recent.popleft()
        if not recent or self.observed <= recent[0][2]:
            return None
        return min(1.0, (self.busy - recent[0][1]) / (self.observed - recent[0][2]))

    def add(self, share: float, seconds: float, now: float) -> None:
        """Count the exact mean of the last `seconds`, which an accumulator gives. `now` is in monotonic seconds."""
        if self._start is None:
            self._start = now - seconds
        known = min(seconds, self._missing(now))
        self._decide(self._missing(now) - known, idle=False)
        self.observed += known
        self.busy += share * known
        self._recent.append((now, self.busy, self.observed))
        if len(self._recent) > 8:
            self.mean(now)  # drops old entries

    def poll(self, percent: int, now: float) -> None:
        """Count one polled percentage for the time since the last poll. `now` is in monotonic seconds."""
        self.drain([[round(now * 1e6), percent]], now, percent)

    def drain(
        self, samples: Samples, now: float, percent: int | None, unix: float | None = None, *, reopened: bool = False
    ) -> None:
        """Count the samples of one drain; samples that were counted before are skipped. `percent` is the driver's value
        for its last sample period, None without one. `now` and `unix` are the monotonic and Unix time of the drain in
        seconds. `reopened` is true if a new worker opened the driver and read its whole ring, possibly a new ring.
        """
        if self._start is None:
            self._start = self._drained = now
        self._watch_clock(now, unix)
        # In a late drain the ring may have wrapped: samples are missing before its oldest one.
        timely = now - self._drained <= _RING_PERIODS * self._period
        trusted = timely and not (reopened or self._hidden or self._stepped)
        self._drained = now
        if reopened and all(s[0] != self._last for s in samples):
            self._last = 0  # a new ring, with its own clock
        last = self._last
        fresh = [s for s in samples if s[0] > last and 0 <= s[1] <= 100] if samples else []
        mixed = self._hidden and any(b[0] < a[0] for a, b in pairwise(fresh))  # the clock was set between them
        fresh.sort()
        if not self._seeded:
            self._seed(fresh)
            self._decide(self._missing(now), idle=False)
        elif mixed:
            self._last, self._level = fresh[-1]
            self._decide(self._missing(now), idle=False)
        elif fresh:
            gaps, idle_gaps = self._credit(fresh, now - self._start)
            if gaps:
                self._settle_gaps(now, gaps, idle_gaps if trusted else 0.0)
            self._presumed, self._idle, self._distrusted_until = 0.0, False, 0.0
            self._settle_tail(now, percent, fresh=True, trusted=trusted)
        elif self._was_reset(samples):
            self._idle = False
            self._decide(self._missing(now), idle=False)
        else:
            self._settle_tail(now, percent, fresh=False, trusted=trusted)
        self._recent.append((now, self.busy, self.observed))
        if len(self._recent) > 8:
            self.mean(now)  # drops old entries

    def _watch_clock(self, now: float, unix: float | None) -> None:
        """Detect that Unix time was set, which some sample clocks follow: then samples seem missing, or to jump."""
        if unix is None:
            return
        offset, before = unix - now, self._offset
        self._offset = offset
        self._stepped = max(0, self._stepped - 1)
        if before is not None and abs(before - offset) > _CLOCK_STEP_PERIODS * self._period:
            self._stepped = 2
            if offset < before:
                self._hidden_until = now + before - offset
        self._hidden = self._drained < self._hidden_until

    def _learn(self, distances: list[float]) -> None:
        """Add distances between consecutive samples, and compute the period again when there are enough new ones."""
        self._distances += distances
        self._unlearned += len(distances)
        if self._unlearned and (self._unlearned >= _RELEARN_DISTANCES or len(self._distances) < _MAX_DISTANCES):
            self._unlearned, self._learned = 0, len(self._distances) > 1  # a single one may contain a clock step
            self._period = sorted(self._distances)[len(self._distances) // 4]

    def _learn_initial(self, samples: Samples) -> None:
        """Learn the period before samples are counted for the first time."""
        distances = [(b[0] - a[0]) * 1e-6 for a, b in pairwise(samples)]
        self._learn([distance for distance in distances if 0 < distance <= self._max_period])

    def _seed(self, samples: Samples) -> None:
        """Start behind the samples that are already there."""
        self._seeded = True
        if samples:
            self._learn_initial(samples)
            self._learned = bool(self._distances)
            self._last, self._level = samples[-1]

    def _credit(self, fresh: Samples, wall: float) -> tuple[float, float]:
        """Count each sample for the time since the one before. Return the seconds of all gaps and of the idle gaps."""
        before, level, idle, counts = self._last or -inf, self._level, self._idle, self._counts
        learned = self._learned
        if not learned:
            self._learn_initial([[self._last, level], *fresh] if self._last else fresh)
        if not (self._last and self._learned):
            level, idle = 100, False  # the time before this sample is not known
        period, longest = self._period, self._max_period
        idle_limit = _IDLE_GAP_PERIODS * period
        limit = idle_limit if self._stepped else _GAP_PERIODS * period
        seconds = weighted = gaps = idle_gaps = 0.0
        distances, percents, distributed = [], 0, self._distribution
        for ts, percent in fresh:
            width = (ts - before) * 1e-6
            if width <= 0:
                continue  # a duplicate
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
        available = max(0.0, wall + self._next - self.observed - self.unobserved)
        counted = min(seconds, available)
        # Seconds that were presumed idle but have samples: they are observed already, and now counted as busy.
        corrected = min(seconds - counted, self._presumed)
        self.observed += counted
        self.busy += weighted / 100 * (counted + corrected) / seconds
        return gaps, idle_gaps

    def _was_reset(self, samples: Samples) -> bool:
        """Return whether all samples are older than the last one counted; counting then continues from the newest."""
        newest = max((s[0] for s in samples if s[0] > 0 and 0 <= s[1] <= 100), default=self._last)
        if newest >= self._last:
            return False
        self._last, self._hidden_until, self._hidden = newest, 0.0, False
        return True

    def _missing(self, now: float) -> float:
        """Return the seconds of wall time that are neither observed nor unobserved yet."""
        assert self._start is not None
        return max(0.0, now - self._start - self.observed - self.unobserved)

    def _settle_gaps(self, now: float, gaps: float, idle: float) -> None:
        """Count the time before the newest sample: `gaps` seconds, of which `idle` seconds are idle."""
        gaps, idle = max(0.0, gaps - self._presumed), max(0.0, idle - self._presumed)
        decided = min(gaps, self._missing(now))
        self._decide(min(idle, decided), idle=True)
        self._decide(max(0.0, decided - idle), idle=False)

    def _settle_tail(self, now: float, percent: int | None, *, fresh: bool, trusted: bool) -> None:
        """Count the time since the newest sample as idle if a trusted percentage is 0, otherwise as unobserved."""
        older = self._missing(now) - self._next
        if older <= 0:
            return
        if percent == 0 and trusted and now >= self._distrusted_until:
            self._idle = True
            self._presumed += older
            self._decide(older, idle=True)
            return
        if older > self._period and not (fresh and trusted):
            self._idle = False
            if percent and not fresh:
                self._distrusted_until = now + _DISTRUST_SECONDS
        self._decide(older, idle=False)

    def _decide(self, seconds: float, *, idle: bool) -> None:
        """Count seconds without samples as observed and idle, or as unobserved."""
        if not idle:
            self.unobserved += seconds
            return
        self.observed += seconds
        self._idle_samples += seconds / self._period
        whole = int(self._idle_samples)
        self._counts[0] += whole
        self._idle_samples -= whole
