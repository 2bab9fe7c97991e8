"""What counters rose by, from their samples: exact through resets, gaps and copies of a series; the series of one
process, each of them once, and what they say of its life.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import NamedTuple

from gpugauge import catalog
from gpugauge.exposition.trainings import HELD, LOST, SECONDS, THREAD
from gpugauge.report.source import Series

VERDICT = (HELD, LOST, SECONDS)

Points = list[tuple[float, float]]
Target = frozenset[tuple[str, str]]


class Rise(NamedTuple):
    """By what a counter rose between two samples; `begin` is `end` for what it had at its first one."""

    begin: float
    end: float
    amount: float


def resets(counters: Sequence[Points]) -> list[float]:
    """Return the times of the first samples after the resets of counters that begin together: any of them is lower, at
    once or, if it is absent while it is 0, later.
    """
    seen = sorted({second for points in counters for second, _ in points})
    # Where samples are those of windows, two targets may meet in one: the lower value says enough there.
    pairs = (pair for points in counters for pair in pairwise(points))
    lower = {before[0] for before, after in pairs if after[1] < before[1] and after[0] > before[0]}
    return sorted({seen[bisect_right(seen, second)] for second in lower})


def rises(points: Points, since: float, began: Sequence[float] = ()) -> list[Rise]:
    """Return the rises of a counter after a time. One that has no sample before it began at 0, as after a reset, of
    which `began` has the times in order.
    """
    found: list[Rise] = []
    before: tuple[float, float] | None = None
    for second, value in points:
        if second > since:
            start, base = before or (second, 0.0)
            again = value < base or bisect_right(began, start) < bisect_right(began, second)
            found.append(Rise(start, second, value if again else value - base))
        before = (second, value)
    return found


def binned(found: Iterable[Rise], begin: float, width: float, count: int) -> list[float]:
    """Return the sums of rises in `count` bins of `width` seconds from `begin` on."""
    bins = [0.0] * count
    for rise in found:
        # A process may end between two samples.
        start, end = (min(begin + count * width, max(begin, moment)) for moment in rise[:2])
        first, last = (min(count - 1, int((moment - begin) / width)) for moment in (start, end))
        for at in range(first, last + 1):
            inside = min(end, begin + (at + 1) * width) - max(start, begin + at * width)
            bins[at] += rise.amount * (max(0.0, inside) / (end - start) if last > first else 1.0)
    return bins


@cache
def own_names(name: str) -> list[str]:
    """Return the labels that the exporter gives the series of a metric, without `process`."""
    labels = {row.name: row.labels for row in catalog.metrics()}
    base = name.removesuffix("_sum").removesuffix("_count")
    return sorted({*labels.get(name, labels.get(base, ()))} - {"process"})


def _target(series: Series) -> Target:
    """Return the labels that the exporter has not given: those of the target and of the server."""
    ours = {*own_names(series.name), "process", "__name__"}
    return frozenset(pair for pair in series.labels.items() if pair[0] not in ours)


def once(series: Iterable[Series]) -> dict[tuple[str, ...], Points]:
    """Return the samples of each series of one process, by the name and the values of own_names. Series that several
    servers or scrape jobs have at the same time count once; those of one exporter after the other are one series.
    """
    groups: defaultdict[str, list[Series]] = defaultdict(list)
    for each in series:
        if each.points:
            # What is held and what of it is lost are those of one exporter, or they do not add up.
            groups["" if each.name in VERDICT else each.name].append(each)
    found: dict[tuple[str, ...], Points] = {}
    for group in groups.values():
        found.update(_of_one(group))
    return found


def _of_one(series: Sequence[Series]) -> dict[tuple[str, ...], Points]:
    extents: dict[Target, list[float]] = {}
    for each in series:
        first, last = each.points[0][0], each.points[-1][0]
        known = extents.setdefault(_target(each), [first, last, 0.0])
        known[:] = min(known[0], first), max(known[1], last), known[2] + len(each.points)
    lane = max(_lanes(extents), key=lambda lane: sum(extents[place][2] for place in lane))
    found: defaultdict[tuple[str, ...], Points] = defaultdict(list)
    # Where samples are those of windows, one target follows another in the same.
    for each in sorted((each for each in series if _target(each) in lane), key=lambda each: extents[_target(each)][0]):
        key = each.name, *(each.labels.get(label, "") for label in own_names(each.name))
        found[key] += each.points
    return {key: sorted(points, key=lambda point: point[0]) for key, points in found.items()}


def _lanes(extents: Mapping[Target, Sequence[float]]) -> list[list[Target]]:
    """Return the targets in lists: of several servers that have the same, each has one. What distinguishes them are the
    labels in which all targets differ that are there at the same time.
    """
    differing = [
        {name for name, _ in one ^ other}
        for one, other in combinations(extents, 2)
        if not _follow(extents[one], extents[other]) and not _follow(extents[other], extents[one])
    ]
    labels = set.intersection(*differing) if differing else set()
    lanes: defaultdict[Target, list[Target]] = defaultdict(list)
    for place in extents:
        server = frozenset(pair for pair in place if pair[0] in labels)
        lanes[server if labels or not differing else place].append(place)
    return list(lanes.values())


def _follow(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether a series ends where another one begins; the times may be those of windows."""
    return before[1] <= after[0] and before[0] < after[1]


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
