"""A minute of what was exported, to be asked by metric name: the verdict sees nothing that a scrape does not show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpugauge.metric import Family, HistogramValue, LabelValues, Value
from gpugauge.snapshot import Section

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names of families by what is asked about them: only how they are now, also how they came about, and also which
    subjects (the first label) they had.
    """

    now: frozenset[str]
    lasting: frozenset[str]
    shown: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return self.now | self.lasting | self.shown


class Kept:
    """The samples of a family at one tick. Ticks in which it had the same series share where each of them stands."""

    __slots__ = ("_places", "_values", "family")

    def __init__(self, family: Family, places: Mapping[LabelValues, int]) -> None:
        """`places` are those of the tick before."""
        self.family = family
        series = [labels for labels, _ in family.samples]
        same = series == list(places)
        self._places = places if same else {labels: place for place, labels in enumerate(series)}
        self._values = [value for _, value in family.samples]

    def next(self, family: Family) -> Kept:
        """Return the same of the next tick; a family that did not change is not remembered twice."""
        return self if self.family is family else Kept(family, self._places)

    def get(self, labels: LabelValues) -> Value | None:
        """Return the value of a series, None without such a one."""
        place = self._places.get(labels)
        return None if place is None else self._values[place]


@dataclass(frozen=True, slots=True)
class Point:
    """What is remembered of one tick: the samples of lasting families, the subjects of those that show some."""

    time: float
    lasting: Mapping[str, Kept]
    shown: Mapping[str, frozenset[str]]

    def get(self, name: str, labels: LabelValues) -> Value | None:
        """Return the value of a series of a lasting family, None if it is not there."""
        kept = self.lasting.get(name)
        return kept.get(labels) if kept else None


class Window:
    """The points of the last `seconds`; older ones are forgotten. Ticks may come at any time."""

    def __init__(self, wanted: Wanted, seconds: float = 60.0) -> None:
        self._wanted, self._seconds, self._every = wanted, seconds, wanted.names
        self._points: deque[Point] = deque()
        self._names: frozenset[str] = frozenset()  # of the lasting families that any of the points has
        self._now: dict[str, Family] = {}
        # What processes on the same GPUs ask alike until the next tick.
        self._samples: dict[str, Mapping[LabelValues, Value]] = {}
        self._grouped: dict[tuple[str, str], dict[str, list[tuple[Labels, Value]]]] = {}
        self._always: dict[str, frozenset[str]] = {}
        self._parts: dict[tuple[float, ...], Window] = {}
        self.memory: dict[object, Any] = {}
        """For what those who ask compute from this window alone; empty again with the next tick."""

    def add(self, time: float, sections: Iterable[Section]) -> None:
        """Take in one tick (monotonic seconds)."""
        names, lasting, showing = self._every, self._wanted.lasting, self._wanted.shown
        self._now = {f.metric.name: f for section in sections for f in section.families if f.metric.name in names}
        before = self._points[-1] if self._points else Point(time, {}, {})
        kept = {name: _kept(family, before.lasting.get(name)) for name, family in self._now.items() if name in lasting}
        self._points.append(Point(time, kept, {name: _subjects(self._now.get(name), before, name) for name in showing}))
        while self._points[0].time < time - self._seconds:
            self._points.popleft()
        self._names = frozenset().union(*(point.lasting for point in self._points))
        self._samples, self._grouped, self._always, self._parts, self.memory = {}, {}, {}, {}, {}

    def since_shown(self, name: str, value: str) -> Window:
        """Return the part of the window in which a family has had a series of the subject `value`."""
        if name not in self._always:
            self._always[name] = frozenset.intersection(*(point.shown[name] for point in self._points))
        if value in self._always[name]:
            return self
        points = deque(point for point in self._points if value in point.shown[name])
        times = tuple(point.time for point in points)
        part = self._parts.get(times)
        if part is None:
            part = self._parts[times] = Window(self._wanted, self._seconds)
            part._points, part._names = points, self._names
            part._now, part._samples, part._grouped = self._now, self._samples, self._grouped
        return part

    @property
    def span(self) -> float:
        """Seconds between the first and the last point; ticks come some milliseconds early or late."""
        return round(self._points[-1].time - self._points[0].time, 1) if self._points else 0.0

    def now(self, name: str, label: str, value: str) -> Sequence[tuple[Labels, Value]]:
        """Return the last point's samples of a family with `label` = `value`, as (labels by name, value)."""
        family = self._now.get(name)
        if family is None:
            return ()
        key = (name, label)
        groups = self._grouped.get(key)
        if groups is None:
            groups = self._grouped[key] = {}
            names = family.metric.labels
            place = names.index(label)
            for values, sample in family.samples:
                groups.setdefault(values[place], []).append((dict(zip(names, values, strict=True)), sample))
        return groups.get(value, ())

    def values(self, name: str, label: str) -> set[str]:
        """Return the values that a label of a family has in the last point."""
        self.now(name, label, "")
        return set(self._grouped.get((name, label), ()))

    def last(self, name: str, *labels: str) -> float | None:
        """Return the last point's value of one series."""
        value = self._latest(name, labels)
        return None if value is None or isinstance(value, HistogramValue) else float(value)

    def quantile(self, share: float, name: str, *labels: str) -> float | None:
        """Return the bound below which `share` of a histogram's observations lie, its last one if they lie above."""
        value = self._latest(name, labels)
        if not isinstance(value, HistogramValue) or not value.counts[-1]:
            return None
        enough, buckets = share * value.counts[-1], self._now[name].metric.buckets
        return next(
            (bound for bound, count in zip(buckets, value.counts, strict=False) if count >= enough), buckets[-1]
        )

    def rise(self, name: str, *labels: str) -> float | None:
        """Return by how much a counter (or a histogram's sum) rose over the window; None without two values."""
        found = self._rise(name, labels)
        return found[0] if found else None

    def rate(self, name: str, *labels: str) -> float | None:
        """Return the same by the second, over the part of the window in which the counter was there."""
        found = self._rise(name, labels)
        return found[0] / found[1] if found else None

    def mean(self, name: str, *labels: str) -> float | None:
        """Return the mean of a gauge over the points that have it."""
        found = [point.get(name, labels) for point in self._points] if name in self._names else ()
        seen = [value for value in found if isinstance(value, (int, float))]
        return sum(seen) / len(seen) if seen else None

    def _latest(self, name: str, labels: LabelValues) -> Value | None:
        family = self._now.get(name)
        if family is None:
            return None
        if name in self._wanted.lasting:
            return self._points[-1].get(name, labels)
        if name not in self._samples:
            self._samples[name] = dict(family.samples)
        return self._samples[name].get(labels)

    def _rise(self, name: str, labels: LabelValues) -> tuple[float, float] | None:
        # Most of what is asked for no program tells: without the hook there is none of its families.
        newest = _first(reversed(self._points), name, labels) if name in self._names else None
        oldest = _first(self._points, name, labels) if newest else None
        if oldest is None or newest is None or oldest[0] == newest[0]:
            return None
        first, last = (v.total if isinstance(v, HistogramValue) else float(v) for _, v in (oldest, newest))
        # A counter of the hardware that began anew has risen by at least what it shows.
        return (last - first if last >= first else last), newest[0] - oldest[0]


def _kept(family: Family, before: Kept | None) -> Kept:
    return before.next(family) if before else Kept(family, {})


def _subjects(family: Family | None, before: Point, name: str) -> frozenset[str]:
    found = frozenset([labels[0] for labels, _ in family.samples] if family else ())
    return before.shown[name] if before.shown.get(name) == found else found


def _first(points: Iterable[Point], name: str, labels: LabelValues) -> tuple[float, Value] | None:
    """Return time and value of the first of some points that has a series."""
    for point in points:
        value = point.get(name, labels)
        if value is not None:
            return point.time, value
    return None
