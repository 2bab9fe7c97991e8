"""What counters rose by, from their samples: exact through resets, gaps and copies of a series."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise
from typing import NamedTuple

from gpugauge import catalog
from gpugauge.exposition.trainings import HELD, LOST, SECONDS
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
