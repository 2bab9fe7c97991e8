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
        self._grouped: dict[tuple[str, str], dict[str, list[tuple[Labels, Value]]]] = {}

    def add(self, time: float, sections: Iterable[Section]) -> None:
        """Take in one tick (monotonic seconds)."""
        self._points.append(Point(time, sections, self._wanted))
        while self._points[0].time < time - self._seconds:
            self._points.popleft()
        self._grouped = {}

    def since_shown(self, name: str, label: str, value: str) -> Window:
        """Return the part of the window in which a family has had a series with `label` = `value`."""
        part = Window(self._wanted, self._seconds)
        part._points = deque(point for point in self._points if value in point.shown(name, label))
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
        seen = [(p.time, s) for p in self._points if (s := p.samples(name).get(labels)) is not None]
        if len(seen) < 2:
            return None
        first, last = (v.total if isinstance(v, HistogramValue) else float(v) for _, v in (seen[0], seen[-1]))
        # A counter of the hardware that began anew has risen by at least what it shows.
        return (last - first if last >= first else last), seen[-1][0] - seen[0][0]

    def mean(self, name: str, *labels: str) -> float | None:
        """Return the mean of a gauge over the points that have it."""
        seen = [float(s) for p in self._points if isinstance(s := p.samples(name).get(labels), (int, float))]
        return sum(seen) / len(seen) if seen else None
