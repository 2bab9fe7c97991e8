"""Families as delimited protobuf messages (io/prometheus/client/metrics.proto of prometheus/client_model)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gpugauge.base.protobuf import double, field, integer, signed, varint
from gpugauge.exposition.text import LabelSets, Samples, encoded, unit_of
from gpugauge.metric import Family, HistogramValue, LabelValues, Metric, Value
from gpugauge.snapshot import Snapshot

# Families with a time at which each counter of a process was 0. The counts of the hook begin with the training.
_PROCESS_START = "gpu_process_start_timestamp_seconds"
_TRAINING_START = "training_start_timestamp_seconds"


class _Seen(NamedTuple):
    """A family in the last snapshot."""

    samples: tuple[object, ...]
    zeros: frozenset[LabelValues]
    starts: dict[LabelValues, float]


_UNSEEN = _Seen((), frozenset(), {})


class Starts:
    """The start of each series that is not 0: the last snapshot in which it was 0, or else the start of its process,
    None without one. It stays until the series is 0 or absent: Prometheus takes a later one for a reset.
    """

    def __init__(self) -> None:
        self._at = 0.0  # Unix time of the last snapshot
        self._seen: dict[Metric, _Seen] = {}
        self._processes: dict[str, dict[str, float]] = {}  # Unix time by process, by family

    def update(self, snapshot: Snapshot) -> None:
        """Take over the zeros of a snapshot. Unchanged families cost nothing."""
        families = [family for section in snapshot.sections for family in section.families]
        for family in families:
            if family.metric.name in {_PROCESS_START, _TRAINING_START}:
                self._processes[family.metric.name] = {labels[0]: float(at) for labels, at in family.samples}  # type: ignore[arg-type]  # gauges
        self._seen = {family.metric: self._of(family) for family in families if family.metric.kind != "gauge"}
        self._at = snapshot.timestamp

    def of(self, metric: Metric) -> dict[LabelValues, float]:
        """Return the known starts of a metric's series, as Unix times."""
        return self._seen.get(metric, _UNSEEN).starts

    def _of(self, family: Family) -> _Seen:
        last = self._seen.get(family.metric, _UNSEEN)
        if last.samples is family.samples:
            return last
        zeros, starts = set(), {}
        for labels, value in family.samples:
            if not (value.counts[-1] if isinstance(value, HistogramValue) else value):
                zeros.add(labels)
            elif labels in last.starts:
                starts[labels] = last.starts[labels]
            elif labels in last.zeros:
                starts[labels] = self._at
            elif start := self._start_of_process(family.metric, labels):
                starts[labels] = start
        return _Seen(family.samples, frozenset(zeros), starts)

    def _start_of_process(self, metric: Metric, labels: LabelValues) -> float | None:
        if "process" not in metric.labels:
            return None
        process = labels[metric.labels.index("process")]
        known = (_TRAINING_START, _PROCESS_START) if metric.name.startswith("torch_") else (_PROCESS_START,)
        starts = (self._processes.get(name, {}).get(process) for name in known)
        return next((start for start in starts if start), None)


_TYPES = {"counter": 0, "gauge": 1, "histogram": 4}
_FIELDS = {"gauge": 2, "counter": 3, "histogram": 7}  # of Metric
_MAX_COUNT = 2**63 - 1  # Prometheus sums the counts of buckets as signed integers


class Messages:
    """Rendered families by metric, so that an unchanged one is not rendered again; two threads use it."""

    def __init__(self) -> None:
        self.starts = Starts()
        self._labels = LabelSets[bytes]()
        self._rendered: dict[tuple[Metric, bool], tuple[Samples, bytes]] = {}

    def of(self, family: Family, *, sparse: bool) -> bytes:
        """Return a family with its length; b"" if no sample is a number. `sparse` leaves out series at 0."""
        key = family.metric, sparse and bool(family.metric.sparse)
        samples, message = self._rendered.get(key, ((), b""))
        if samples is not family.samples:
            if samples != family.samples:
                message = self._family(family, sparse=key[1])
            self._rendered[key] = (family.samples, message)
        return message

    def _family(self, family: Family, *, sparse: bool) -> bytes:
        metric = family.metric
        starts = self.starts.of(metric)
        label_sets = self._labels.texts(metric.labels, len(family.samples))
        parts = [_heading(metric)]
        for values, value in family.samples:
            if sparse and value == 0 and values[-1] in metric.sparse:
                continue
            content = _value(metric, value, starts.get(values))
            if content:
                labels = label_sets.get(values) or label_sets.setdefault(values, _labels(metric.labels, values))
                parts.append(field(4, labels + content))
        if len(parts) == 1:
            return b""
        message = b"".join(parts)
        return varint(len(message)) + message


@lru_cache(maxsize=1024)
def _heading(metric: Metric) -> bytes:
    unit = field(5, unit_of(metric)) if metric.unit else b""
    return field(1, metric.name) + field(2, metric.help) + integer(3, _TYPES[metric.kind]) + unit


def _labels(names: tuple[str, ...], values: LabelValues) -> bytes:
    pairs = sorted(zip(names, values, strict=True))
    return b"".join(field(1, field(1, name) + field(2, encoded(value))) for name, value in pairs)


def _value(metric: Metric, value: Value, start: float | None) -> bytes | None:
    """Return the field of a metric's value; None for NaN or overflow, so that a wrong reading loses its sample only."""
    try:
        if isinstance(value, HistogramValue):
            content = _histogram(metric, value, start)
        else:
            content = double(1, value) + (_timestamp(3, start) if metric.kind == "counter" else b"")
            content = b"" if value != value else content  # noqa: PLR0124  # NaN is unequal to itself
    except OverflowError:
        return None
    return field(_FIELDS[metric.kind], content) if content else None


def _histogram(metric: Metric, value: HistogramValue, start: float | None) -> bytes:
    count, total = value.counts[-1], value.total
    if total != total or count > _MAX_COUNT:  # noqa: PLR0124  # NaN is unequal to itself
        return b""
    bounds = (*metric.buckets, float("inf"))
    buckets = (
        field(3, integer(1, below) + double(2, bound)) for below, bound in zip(value.counts, bounds, strict=True)
    )
    return b"".join((integer(1, count), double(2, total), *buckets, _native(value), _timestamp(15, start)))


def _native(value: HistogramValue) -> bytes:
    """Return the buckets of a native histogram with schema 0; b"" if the counts by powers of two are not known."""
    if not value.log2:
        return b""
    zeros, *counts = value.log2
    used = [i for i, count in enumerate(counts) if count]
    parts = [integer(5, 0), double(6, 2.0**value.log2_first), integer(7, zeros)]
    if used:
        counts = counts[used[0] : used[-1] + 1]
        deltas = [after - before for before, after in zip([0, *counts], counts, strict=False)]
        span = varint(1 << 3) + signed([value.log2_first + 1 + used[0]]) + integer(2, len(counts))
        parts += [field(12, span), field(13, signed(deltas))]
    return b"".join(parts)


def _timestamp(number: int, start: float | None) -> bytes:
    if start is None:
        return b""
    seconds = int(start)
    nanoseconds = int((start - seconds) * 1e9)
    return field(number, integer(1, seconds) + (integer(2, nanoseconds) if nanoseconds else b""))
