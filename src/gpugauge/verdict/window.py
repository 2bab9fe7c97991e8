"""A minute of what was exported, to be asked by metric name: the verdict sees nothing that a scrape does not show."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from gpugauge.metric import HistogramValue, LabelValues, Metric, Value
from gpugauge.snapshot import Section

Labels = Mapping[str, str]


class Point:
    """The wanted families of one tick: by name, the labels' names and the samples."""

    def __init__(self, time: float, sections: Iterable[Section], wanted: frozenset[str]) -> None:
        self.time = time
        self.families: dict[str, tuple[Metric, dict[LabelValues, Value]]] = {
            family.metric.name: (family.metric, dict(family.samples))
            for section in sections
            for family in section.families
            if family.metric.name in wanted
        }
        self._shown: dict[tuple[str, str], set[str]] = {}

    def shown(self, name: str, label: str) -> set[str]:
        """Return the values that a label of a family has."""
        if (name, label) not in self._shown:
            metric, samples = self.families.get(name, (None, {}))
            place = metric.labels.index(label) if metric else 0
            self._shown[name, label] = {values[place] for values in samples}
        return self._shown[name, label]

    def samples(self, name: str) -> Mapping[LabelValues, Value]:
        """Return the samples of a family by their label values; empty if it is not there."""
        return self.families[name][1] if name in self.families else {}


class Window:
    """The points of the last `seconds`; older ones are forgotten."""

    def __init__(self, wanted: frozenset[str], seconds: float = 60.0) -> None:
        self._wanted, self._seconds = wanted, seconds
        self._points: deque[Point] = deque()
        self._names: frozenset[str] = frozenset()  # of the families that any of the points has
        self._grouped: dict[tuple[str, str], dict[str, list[tuple[Labels, Value]]]] = {}
        # What processes on the same cards ask alike until the next tick: parts by their points' times, means by series.
        self._parts: dict[tuple[float, ...], Window] = {}
        self._means: dict[tuple[str, LabelValues], float | None] = {}

    def add(self, time: float, sections: Iterable[Section]) -> None:
        """Take in one tick (monotonic seconds)."""
        self._points.append(Point(time, sections, self._wanted))
        while self._points[0].time < time - self._seconds:
            self._points.popleft()
        self._names = frozenset().union(*(point.families for point in self._points))
        self._grouped, self._parts, self._means = {}, {}, {}

    def since_shown(self, name: str, label: str, value: str) -> Window:
        """Return the part of the window in which a family has had a series with `label` = `value`."""
        points = deque(point for point in self._points if value in point.shown(name, label))
        times = tuple(point.time for point in points)
        part = self._parts.get(times)
        if part is None:
            part = self._parts[times] = Window(self._wanted, self._seconds)
            part._points, part._names = points, self._names
            part._grouped = self._grouped  # it is about the last point only
        return part

    @property
    def span(self) -> float:
        """Seconds between the first and the last point."""
        return self._points[-1].time - self._points[0].time if self._points else 0.0

    def now(self, name: str, label: str, value: str) -> list[tuple[Labels, Value]]:
        """Return the last point's samples of a family with `label` = `value`, as (labels by name, value)."""
        key = (name, label)
        if key not in self._grouped:
            groups: defaultdict[str, list[tuple[Labels, Value]]] = defaultdict(list)
            if self._points and name in self._points[-1].families:
                metric, samples = self._points[-1].families[name]
                for values, sample in samples.items():
                    labels = dict(zip(metric.labels, values, strict=True))
                    groups[labels.get(label, "")].append((labels, sample))
            self._grouped[key] = dict(groups)
        return self._grouped[key].get(value, [])

    def values(self, name: str, label: str) -> set[str]:
        """Return the values that a label of a family has in the last point."""
        self.now(name, label, "")
        return set(self._grouped[name, label])

    def last(self, name: str, *labels: str) -> float | None:
        """Return the last point's value of one series."""
        value = self._points[-1].samples(name).get(labels) if self._points else None
        return None if value is None or isinstance(value, HistogramValue) else float(value)

    def quantile(self, share: float, name: str, *labels: str) -> float | None:
        """Return the bound below which `share` of a histogram's observations lie, its last one if they lie above."""
        if not self._points or name not in self._points[-1].families:
            return None
        metric, samples = self._points[-1].families[name]
        value = samples.get(labels)
        if not isinstance(value, HistogramValue) or not value.counts[-1]:
            return None
        enough = share * value.counts[-1]
        bounds = zip(metric.buckets, value.counts, strict=False)
        return next((bound for bound, count in bounds if count >= enough), metric.buckets[-1])

    def rise(self, name: str, *labels: str) -> float | None:
        """Return by how much a counter (or a histogram's sum) rose over the window; None without two values."""
        found = self._rise(name, labels)
        return found[0] if found else None

    def rate(self, name: str, *labels: str) -> float | None:
        """Return the same by the second, over the part of the window in which the counter was there."""
        found = self._rise(name, labels)
        return found[0] / found[1] if found else None

    def _rise(self, name: str, labels: LabelValues) -> tuple[float, float] | None:
        # Most of what is asked for no program tells: without the hook there is none of its families.
        newest = _first(reversed(self._points), name, labels) if name in self._names else None
        oldest = _first(self._points, name, labels) if newest else None
        if oldest is None or newest is None or oldest[0] == newest[0]:
            return None
        first, last = (v.total if isinstance(v, HistogramValue) else float(v) for _, v in (oldest, newest))
        # A counter of the hardware that began anew has risen by at least what it shows.
        return (last - first if last >= first else last), newest[0] - oldest[0]

    def mean(self, name: str, *labels: str) -> float | None:
        """Return the mean of a gauge over the points that have it."""
        key = (name, labels)
        if key not in self._means:
            points = self._points if name in self._names else ()
            seen = [float(s) for p in points if isinstance(s := p.samples(name).get(labels), (int, float))]
            self._means[key] = sum(seen) / len(seen) if seen else None
        return self._means[key]


def _first(points: Iterable[Point], name: str, labels: LabelValues) -> tuple[float, Value] | None:
    """Return time and value of the first of some points that has a series."""
    for point in points:
        value = point.samples(name).get(labels)
        if value is not None:
            return point.time, value
    return None
