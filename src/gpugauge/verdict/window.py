"""The exported samples of the last minute by metric name. The verdict uses only values that a scrape shows as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpugauge.metric import Family, HistogramValue, LabelValues, Value
from gpugauge.snapshot import Section

_JITTER_SECONDS = 0.5

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WindowFamilies:
    """Names of the families in a window, by what is kept of them: the samples of the last tick only, the samples of all
    ticks, or the subjects (values of the first label) of all ticks.
    """

    latest: frozenset[str]
    history: frozenset[str]
    subjects: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """The names of all families."""
        return self.latest | self.history | self.subjects


class FamilySamples:
    """The samples of a family at one tick. Ticks with the same series share the index of each series."""

    __slots__ = ("_index", "_values", "family")

    def __init__(self, family: Family, index: Mapping[LabelValues, int]) -> None:
        """`index` is that of the tick before."""
        self.family: Family | None = family
        series = [labels for labels, _ in family.samples]
        same = series == list(index)
        self._index = index if same else {labels: place for place, labels in enumerate(series)}
        self._values = [value for _, value in family.samples]

    def next(self, family: Family) -> FamilySamples:
        """Return the samples of the next tick; this object if the family did not change."""
        if self.family is family:
            return self
        self.family = None  # only the newest is compared, and each holds the labels of all its samples
        return FamilySamples(family, self._index)

    def get(self, labels: LabelValues) -> Value | None:
        """Return the value of a series, None if there is no such series."""
        place = self._index.get(labels)
        return None if place is None else self._values[place]


@dataclass(frozen=True, slots=True)
class Point:
    """The data kept of one tick: samples and subjects by name of the family."""

    time: float  # monotonic seconds
    history: Mapping[str, FamilySamples]
    subjects: Mapping[str, frozenset[str]]

    def get(self, name: str, labels: LabelValues) -> Value | None:
        """Return the value of a series, None if there is no such series."""
        samples = self.history.get(name)
        return samples.get(labels) if samples else None


class Window:
    """The points of the last `seconds`. The time between ticks may vary."""

    def __init__(self, families: WindowFamilies, seconds: float = 60.0) -> None:
        self._families, self.seconds, self._all_names = families, seconds, families.names
        self._points: deque[Point] = deque()
        self._names: frozenset[str] = frozenset()  # of the families in the history of any point
        self._latest: dict[str, Family] = {}
        # Results that the processes on the same GPUs share until the next tick.
        self._by_labels: dict[str, Mapping[LabelValues, Value]] = {}
        self._grouped: dict[tuple[str, str], dict[str, list[tuple[Labels, Value]]]] = {}
        self._always_present: dict[str, frozenset[str]] = {}
        self._parts: dict[tuple[float, ...], Window] = {}
        self.cache: dict[object, Any] = {}
        """Cache for callers, for values computed from this window alone; emptied at the next tick."""

    def add(self, time: float, sections: Iterable[Section]) -> None:
        """Add one tick, `time` in monotonic seconds."""
        names, history, with_subjects = self._all_names, self._families.history, self._families.subjects
        self._latest = {f.metric.name: f for section in sections for f in section.families if f.metric.name in names}
        before = self._points[-1] if self._points else Point(time, {}, {})
        kept = {name: _kept(f, before.history.get(name)) for name, f in self._latest.items() if name in history}
        subjects = {name: _subjects(self._latest.get(name), before, name) for name in with_subjects}
        self._points.append(Point(time, kept, subjects))
        while self._points[0].time < time - self.seconds:
            self._points.popleft()
        self._names = frozenset().union(*(point.history for point in self._points))
        self._by_labels, self._grouped, self._always_present, self._parts, self.cache = {}, {}, {}, {}, {}

    def since_present(self, name: str, subject: str) -> Window:
        """Return the part of the window in which a family has a series of `subject`."""
        if name not in self._always_present:
            self._always_present[name] = frozenset.intersection(*(point.subjects[name] for point in self._points))
        if subject in self._always_present[name]:
            return self
        return self._part(deque(point for point in self._points if subject in point.subjects[name]))

    def recent(self, seconds: float) -> Window:
        """Return the part of the window in the last `seconds`, at least the last two points. Points vary by some
        milliseconds.
        """
        earliest = self._points[-1].time - seconds - _JITTER_SECONDS
        late = [point for point in self._points if point.time >= earliest]
        return self._part(deque(late if len(late) > 1 else list(self._points)[-2:]))

    def _part(self, points: deque[Point]) -> Window:
        times = tuple(point.time for point in points)
        part = self._parts.get(times)
        if part is None:
            part = self._parts[times] = Window(self._families, self.seconds)
            part._points, part._names = points, self._names
            part._latest, part._by_labels, part._grouped = self._latest, self._by_labels, self._grouped
        return part

    @property
    def span(self) -> float:
        """Seconds between the first and the last point, rounded: ticks vary by some milliseconds."""
        return round(self._points[-1].time - self._points[0].time, 1) if self._points else 0.0

    def samples(self, name: str, label: str, value: str) -> Sequence[tuple[Labels, Value]]:
        """Return the last samples of a family with `label` = `value`, as (labels by name, value)."""
        family = self._latest.get(name)
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
        """Return the values of a label in the last samples of a family."""
        self.samples(name, label, "")
        return set(self._grouped.get((name, label), ()))

    def last(self, name: str, *labels: str) -> float | None:
        """Return the last value of a series."""
        value = self._last(name, labels)
        return None if value is None or isinstance(value, HistogramValue) else float(value)

    def total(self, name: str, *labels: str) -> float | None:
        """Return the last value of a counter, or of a histogram's sum."""
        value = self._last(name, labels)
        return value.total if isinstance(value, HistogramValue) else value

    def quantile(self, share: float, name: str, *labels: str) -> float | None:
        """Return the bound of a histogram below which `share` of the observations lie, at most its highest bound."""
        value = self._last(name, labels)
        if not isinstance(value, HistogramValue) or not value.counts[-1]:
            return None
        enough, buckets = share * value.counts[-1], self._latest[name].metric.buckets
        return next(
            (bound for bound, count in zip(buckets, value.counts, strict=False) if count >= enough), buckets[-1]
        )

    def rise(self, name: str, *labels: str) -> float | None:
        """Return the increase of a counter, or of a histogram's sum, over the window; None without two values."""
        found = self._rise(name, labels)
        return found[0] if found else None

    def rate(self, name: str, *labels: str) -> float | None:
        """Return the increase per second, over the part of the window in which the counter exists."""
        found = self._rise(name, labels)
        return found[0] / found[1] if found else None

    def mean(self, name: str, *labels: str) -> float | None:
        """Return the mean of a gauge over the points that have it."""
        found = [point.get(name, labels) for point in self._points] if name in self._names else ()
        values = [value for value in found if isinstance(value, (int, float))]
        return sum(values) / len(values) if values else None

    def _last(self, name: str, labels: LabelValues) -> Value | None:
        family = self._latest.get(name)
        if family is None:
            return None
        if name in self._families.history:
            return self._points[-1].get(name, labels)
        if name not in self._by_labels:
            self._by_labels[name] = dict(family.samples)
        return self._by_labels[name].get(labels)

    def _rise(self, name: str, labels: LabelValues) -> tuple[float, float] | None:
        # Most families are absent for most processes: without the hook all of its families.
        newest = _first(reversed(self._points), name, labels) if name in self._names else None
        oldest = _first(self._points, name, labels) if newest else None
        if oldest is None or newest is None or oldest[0] == newest[0]:
            return None
        first, last = (v.total if isinstance(v, HistogramValue) else float(v) for _, v in (oldest, newest))
        # A hardware counter that was reset has increased by at least its value.
        return (last - first if last >= first else last), newest[0] - oldest[0]


def _kept(family: Family, before: FamilySamples | None) -> FamilySamples:
    return before.next(family) if before else FamilySamples(family, {})


def _subjects(family: Family | None, before: Point, name: str) -> frozenset[str]:
    found = frozenset([labels[0] for labels, _ in family.samples] if family else ())
    return before.subjects[name] if before.subjects.get(name) == found else found


def _first(points: Iterable[Point], name: str, labels: LabelValues) -> tuple[float, Value] | None:
    """Return time and value of the first point that has a series."""
    for point in points:
        value = point.get(name, labels)
        if value is not None:
            return point.time, value
    return None
