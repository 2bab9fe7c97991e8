"""The series of one process, each of them once, and what they say of its life."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median

from gpugauge.exposition.trainings import SECONDS, THREAD
from gpugauge.report.counters import VERDICT, Points, Rise, once, own_names, resets, rises
from gpugauge.report.source import Series

_LATE = 4.0  # intervals between two samples after which they are a gap
_SHORTEST_SECONDS, _SHORTEST_GAP_SECONDS = 10.0, 60.0
_LEAST_LATE_SECONDS, _MOST_LATE_SECONDS = 15.0, 120.0  # clocks differ by seconds


class Facts:
    """What is known of a process after a time."""

    def __init__(self, series: Iterable[Series], since: float) -> None:
        self._points = once(series)
        self._since = since
        # A restarted exporter may have counted more of one cause by the next scrape than before, and less of another.
        self._began = resets([points for key, points in self._points.items() if key[0] in VERDICT])
        counted = [points for key, points in self._points.items() if key[0] == SECONDS]
        seen = sorted({second for points in counted for second, _ in points if second > since})
        changed = [rise for points in counted for rise in rises(points, since, self._began) if rise.amount > 0]
        self.seconds = sum(rise.amount for rise in changed)
        first = min((rise.end for rise in changed), default=seen[0] if seen else since)
        began = [rise.amount for rise in changed if rise.begin == rise.end == first]
        # What its counters had at their first sample is the time before it, by the exporter's own clock.
        self.begin = max(since, min(first, seen[0] if seen else first) - sum(began))
        self.end = max((rise.end for rise in changed), default=self.begin)
        before = max((second for second in seen if second < self.end), default=self.begin)
        if self.end not in self._began:
            # It ended when what its counters rose by after the sample before was over.
            last = sum(rise.amount for rise in changed if rise.end == self.end)
            self.end = min(self.end, max(self.begin, before) + last)
        self.last_seen = seen[-1] if seen else self.begin
        self.continues = any(points[0][0] <= since for points in counted)
        between = [after - before for before, after in pairwise(seen)]
        self.interval = median(between) if between else 0.0
        longest = max(_SHORTEST_GAP_SECONDS, _LATE * self.interval)
        self.gaps = [(b, a) for b, a in pairwise(seen) if a - b > longest and b < self.end]

    @property
    def uncounted(self) -> float:
        """The seconds of its life that no counter has, if they are more than two samples and two verdicts are apart."""
        missing = self.end - self.begin - self.seconds
        return missing if missing > max(_SHORTEST_SECONDS, self.interval) else 0.0

    def runs(self, now: float) -> bool:
        """Return whether it has samples until now, by their interval."""
        return now - self.last_seen < min(_MOST_LATE_SECONDS, max(_LEAST_LATE_SECONDS, _LATE * self.interval))

    def of(self, name: str) -> dict[tuple[str, ...], Points]:
        """Return the samples of a metric after the begin of the range, by the values of its labels."""
        return {key[1:]: points for key, points in self._points.items() if key[0] == name}

    def rises(self, name: str) -> dict[str, list[Rise]]:
        """Return the rises of a counter by its one label, or by ""."""
        began = self._began if name in VERDICT else ()
        return {(key or ("",))[0]: rises(points, self._since, began) for key, points in self.of(name).items()}

    def by(self, name: str) -> dict[str, float]:
        """Return what a counter rose by, by its label."""
        return {key: sum(rise.amount for rise in found) for key, found in self.rises(name).items()}

    def of_thread(self) -> dict[str, float]:
        """Return the seconds of the training thread in the phase of the training, by its state."""
        states = {state: points for (phase, state), points in self.of(THREAD).items() if phase == "training"}
        return {state: sum(rise.amount for rise in rises(points, self._since, ())) for state, points in states.items()}

    def sum(self, name: str) -> float | None:
        """Return what a counter rose by, None without it."""
        found = self.by(name)
        return sum(found.values()) if found else None

    def mean(self, name: str) -> dict[str, float]:
        """Return the mean of a gauge by its label."""
        return {(key or ("",))[0]: fmean(v for _, v in points) for key, points in self.of(name).items()}

    def info(self, name: str) -> dict[str, str]:
        """Return the labels of an info series, the latest ones."""
        known = self.of(name)
        latest = max(known, key=lambda key: (known[key][-1][0], len(known[key])), default=None)
        return dict(zip(own_names(name), latest, strict=True)) if latest is not None else {}
