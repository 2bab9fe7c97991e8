"""Start timestamps of counters and histograms: Unix times at which a series was 0, for the first increase of each."""

from __future__ import annotations

from typing import NamedTuple

from gpugauge.metric import Family, HistogramValue, LabelValues, Metric
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
    """The start of each series that is not 0: the last snapshot in which it was 0, or else the start of its process.

    The start of a series stays the same until it is 0 or absent again: Prometheus takes a later start for a reset. A
    series without a known start has none. One thread at a time calls `update`, both threads call `of`.
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
