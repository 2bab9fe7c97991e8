"""Load of GPUs and processes over the last ten minutes, and who used a GPU last, from the published snapshots, in
bounded memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpugauge.metric import Family, HistogramValue
from gpugauge.snapshot import Snapshot

_POINT_SECONDS = 5.0  # between two points
_TICK_JITTER_SECONDS = 0.5  # ticks may be 5 s apart, but not exactly: a point may be this much early
_HISTORY_SECONDS = 600.0
_MAX_PROCESSES_PER_POINT = 2048  # (process, uuid) pairs
_MAX_LAST_PROCESSES = 32  # of a GPU
# A mean needs values for at least half of the known part of its window, and for this time.
_MIN_OBSERVED_RATIO, _MIN_OBSERVED_SECONDS = 0.5, 30.0

_COUNTS = ("torch_samples_total", "torch_tokens_total")

WASTED_RATIO = 0.5
"""A GPU of which a process loses this share of the time is wasted, one of which it loses less is slowed."""
_STILL_WASTED_RATIO = 0.45

Key = tuple[str, str]  # process, uuid

IDENTITIES = ("torch_process_info", "gpu_process_host_info", "gpu_process_info")
"""The families with facts about processes; a later one takes precedence."""
# What is kept about the processes of a GPU that may be lost.
_KEPT = (
    *IDENTITIES,
    *("gpu_process_start_timestamp_seconds", "gpu_process_memory_used_bytes", "training_state", "training_limited_by"),
    *("training_limited_by_ratio", "torch_steps_total", "training_last_step_timestamp_seconds"),
)


@dataclass(frozen=True, slots=True)
class _Point:
    monotonic: float
    busy: Mapping[str, float]  # by uuid
    observed: Mapping[str, float]
    processes: Mapping[Key, float]
    steps: Mapping[str, tuple[int, float]]  # steps with a known duration, and their seconds, by process
    counts: Mapping[str, Mapping[str, float]]  # by family of _COUNTS and process


@dataclass(frozen=True, slots=True)
class LastUse:
    """The processes on a GPU when it answered last, at Unix time `timestamp`, and the families about them by name."""

    timestamp: float
    processes: tuple[str, ...]
    families: Mapping[str, Family]


def by_name(snapshot: Snapshot) -> dict[str, Family]:
    """Return the families of a snapshot by name."""
    return {family.metric.name: family for section in snapshot.sections for family in section.families}


def is_wasted(lost: float, *, before: bool) -> bool:
    """Return whether a process wastes its GPU, of whose time it loses a share. `before`: it did so until now. One that
    loses about half does not change from view to view.
    """
    return lost >= (_STILL_WASTED_RATIO if before else WASTED_RATIO)


def by_labels(family: Family | None, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of a family by some of its labels, without histograms; {} for an absent family."""
    if family is None:
        return {}
    places = [family.metric.labels.index(label) for label in labels]
    return {tuple(v[i] for i in places): x for v, x in family.samples if isinstance(x, (int, float))}


class History:
    """Ring of points. The sampler's thread feeds it, the server's thread reads it."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._lock = threading.Lock()
        self._last_uses: Mapping[str, LastUse] = {}
        self._reporting: Mapping[str, float] = {}  # monotonic time from which on a process reports through the hook
        self._silent: Mapping[str, float] = {}  # from which on a process with the hook has been there without a report
        self._wasted: frozenset[str] = frozenset()  # the processes that waste their GPU
        self._now = 0.0

    def feed(self, snapshot: Snapshot) -> None:
        """Add a point if the newest one is about 5 s old."""
        now = self._now = snapshot.monotonic
        if self._points and now - self._points[-1].monotonic < _POINT_SECONDS - _TICK_JITTER_SECONDS:
            return
        found = by_name(snapshot)
        processes = by_labels(found.get("gpu_process_busy_seconds_total"), "process", "uuid")
        point = _Point(
            now,
            _of_gpu_engine(found.get("gpu_busy_seconds_total")),
            _of_gpu_engine(found.get("gpu_observed_seconds_total")),
            {
                (process, uuid): seconds
                for (process, uuid), seconds in list(processes.items())[:_MAX_PROCESSES_PER_POINT]
            },
            _durations(found.get("torch_step_duration_seconds")),
            {name: {p: x for (p,), x in by_labels(found.get(name), "process").items()} for name in _COUNTS},
        )
        self._last_uses = {**self._last_uses, **_uses(found, snapshot.timestamp)}
        present = by_labels(found.get("torch_process_info"), "process")
        self._reporting = {process: self._reporting.get(process, now) for (process,) in present}
        host = by_labels(found.get("gpu_process_host_info"), "process", "hook")
        silent = [process for process, hook in host if hook == "yes" and (process,) not in present]
        self._silent = {process: self._silent.get(process, now) for process in silent}
        losses = _losses(found).items()
        self._wasted = frozenset(p for p, lost in losses if is_wasted(lost, before=p in self._wasted))
        with self._lock:
            self._points.append(point)
            while now - self._points[0].monotonic > _HISTORY_SECONDS:
                self._points.popleft()

    def load(self, uuid: str, seconds: float) -> float | None:
        """Return the share of the last `seconds` in which the GPU was busy, of the time since the start of the daemon
        if that is shorter; None if less than half of it, or less than 30 s, was observed.
        """
        pair = self._pair(seconds)
        return _share(*pair, uuid, _MIN_OBSERVED_SECONDS) if pair else None

    def wasted(self, process: str) -> bool:
        """Return whether a process wasted its GPU at the newest point."""
        return process in self._wasted

    def loads(self, uuid: str) -> list[tuple[float, float | None]]:
        """Return the load of the GPU between successive points as (age of the interval's end in seconds, share busy),
        the oldest first. The age is relative to the newest point. The share is None where it is unknown, and in the
        first entry, which only marks the start.
        """
        with self._lock:
            points = list(self._points)
        newest = points[-1].monotonic if points else 0.0
        shares = [None, *(_share(old, new, uuid) for old, new in pairwise(points))]
        return [(newest - point.monotonic, share) for point, share in zip(points, shares, strict=False)]

    def process_load(self, process: str, uuid: str, seconds: float) -> float | None:
        """Return the share of the last `seconds` in which a process kept a GPU busy, of its lifetime if that is
        shorter. None if it is unknown, and before 30 s.
        """
        with self._lock:
            window = [
                p for p in self._points if p.monotonic >= self._points[-1].monotonic - seconds - _POINT_SECONDS / 2
            ]
        known = [(p.monotonic, p.processes[process, uuid]) for p in window if (process, uuid) in p.processes]
        if len(known) < 2 or known[-1][0] < window[-1].monotonic:
            return None
        (begin, before), (end, after) = known[0], known[-1]
        if end - begin < _MIN_OBSERVED_SECONDS - _TICK_JITTER_SECONDS:
            return None
        return min(1.0, max(0.0, after - before) / (end - begin))

    def step_seconds(self, process: str, seconds: float) -> float | None:
        """Return the mean time from one step to the next over the last `seconds`, None without a step."""
        with self._lock:
            points = [p.steps.get(process) for p in self._points]
            begin = self._points[-1].monotonic - seconds - _POINT_SECONDS / 2 if self._points else 0.0
            window = [steps for steps, p in zip(points, self._points, strict=True) if steps and p.monotonic >= begin]
        if not window or not points[-1]:
            return None
        (before, since), (after, until) = window[0], window[-1]
        if len(window) < 2 or before == 0 or after <= before:
            before, since = 0, 0.0  # since the start of the training
        return (until - since) / (after - before) if after > before else None

    def per_second(self, process: str, name: str, seconds: float) -> float | None:
        """Return the rate of a counter of _COUNTS over the last `seconds`, None without two values."""
        with self._lock:
            begin = self._points[-1].monotonic - seconds - _POINT_SECONDS / 2 if self._points else 0.0
            window = [(p.monotonic, p.counts[name].get(process)) for p in self._points if p.monotonic >= begin]
        known = [(at, count) for at, count in window if count is not None]
        if len(known) < 2 or window[-1][1] is None:
            return None
        (since, before), (until, after) = known[0], known[-1]
        return (after - before) / (until - since) if after >= before else None

    def reporting_seconds(self, process: str) -> float | None:
        """Return for how long a process has reported through the hook, as far as it was observed; None if unknown."""
        since = self._reporting.get(process)
        return None if since is None else self._now - since

    def silent_seconds(self, process: str) -> float | None:
        """Return for how long a process with the hook has been observed without a report; None if it is none."""
        since = self._silent.get(process)
        return None if since is None else self._now - since

    def last_use(self, uuid: str) -> LastUse | None:
        """Return who used a GPU when it answered last, None if it has not answered since the start of the daemon."""
        return self._last_uses.get(uuid)

    def _pair(self, seconds: float) -> tuple[_Point, _Point] | None:
        """Return the point `seconds` before the newest, or the oldest, and the newest point."""
        with self._lock:
            if len(self._points) < 2:
                return None
            new = self._points[-1]
            begin = new.monotonic - seconds - _POINT_SECONDS / 2
            return next(p for p in self._points if p.monotonic >= begin), new


def _share(old: _Point, new: _Point, uuid: str, least: float = 0.0) -> float | None:
    """Return the share of the observed time in which the GPU was busy, None if the observed time is less than half of
    that between the points, or less than `least` seconds.
    """
    try:
        observed = new.observed[uuid] - old.observed[uuid]
        busy = new.busy[uuid] - old.busy[uuid]
    except KeyError:
        return None
    required = max(_MIN_OBSERVED_RATIO * (new.monotonic - old.monotonic), least - _TICK_JITTER_SECONDS)
    return min(1.0, busy / observed) if observed >= required and busy >= 0 else None


def _of_gpu_engine(family: Family | None) -> dict[str, float]:
    return {uuid: x for (uuid, engine), x in by_labels(family, "uuid", "engine").items() if engine == "gpu"}


def _durations(family: Family | None) -> dict[str, tuple[int, float]]:
    if family is None:
        return {}
    place = family.metric.labels.index("process")
    return {
        labels[place]: (value.counts[-1], value.total)
        for labels, value in family.samples
        if isinstance(value, HistogramValue) and value.counts[-1]
    }


def _losses(found: Mapping[str, Family]) -> dict[str, float]:
    """Return the share of the GPU time that each process loses to what limits it."""
    causes = by_labels(found.get("training_limited_by"), "process", "cause")
    lost = by_labels(found.get("training_limited_by_ratio"), "process", "cause")
    return {process: lost.get((process, cause), 0.0) for (process, cause), main in causes.items() if main}


def _uses(found: Mapping[str, Family], timestamp: float) -> dict[str, LastUse]:
    """Return the present processes of each GPU that answers."""
    families = {name: found[name] for name in _KEPT if name in found}
    processes: dict[str, list[str]] = {}
    for process, uuid in by_labels(found.get("gpu_process_memory_used_bytes"), "process", "uuid"):
        processes.setdefault(uuid, []).append(process)
    answering = [uuid for (uuid,), up in by_labels(found.get("gpu_up"), "uuid").items() if up]
    return {
        uuid: LastUse(timestamp, tuple(found_here), families if found_here else {})
        for uuid in answering
        for found_here in [processes.get(uuid, [])[:_MAX_LAST_PROCESSES]]
    }
