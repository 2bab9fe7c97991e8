"""The last ten minutes of load, remembered from the published snapshots: a bounded ring, no database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpugauge.metric import Family
from gpugauge.snapshot import Snapshot

_STEP = 5.0  # seconds between two points
_EARLY = 0.5  # by which one may come earlier than that: ticks are up to as far apart, and never exactly
_LENGTH = 600.0
_PROCESSES = 2048  # (process, uuid) pairs that one point holds
# Half a window is enough for a mean; less is told as unknown.
_LEAST = 0.5

Key = tuple[str, str]  # process, uuid


@dataclass(frozen=True, slots=True)
class _Point:
    monotonic: float
    busy: Mapping[str, float]  # by uuid
    observed: Mapping[str, float]
    processes: Mapping[Key, float]


def by_name(snapshot: Snapshot) -> dict[str, Family]:
    """Return the families of a snapshot by name."""
    return {family.metric.name: family for section in snapshot.sections for family in section.families}


def by_labels(family: Family | None, *labels: str) -> dict[tuple[str, ...], float]:
    """Return a family's values by some of its labels; nothing for a family that is not there."""
    if family is None:
        return {}
    places = [family.metric.labels.index(label) for label in labels]
    # Histograms are of no use here, and no number.
    return {tuple(v[i] for i in places): x for v, x in family.samples if isinstance(x, (int, float))}


class History:
    """Fed by the sampler's thread, read by the server's."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._lock = threading.Lock()

    def feed(self, snapshot: Snapshot) -> None:
        """Remember a snapshot if the last one remembered is old enough."""
        now = snapshot.monotonic
        if self._points and now - self._points[-1].monotonic < _STEP - _EARLY:
            return
        found = by_name(snapshot)
        processes = by_labels(found.get("gpu_process_busy_seconds_total"), "process", "uuid")
        point = _Point(
            now,
            _of_gpu_engine(found.get("gpu_busy_seconds_total")),
            _of_gpu_engine(found.get("gpu_observed_seconds_total")),
            {(process, uuid): seconds for (process, uuid), seconds in list(processes.items())[:_PROCESSES]},
        )
        with self._lock:
            self._points.append(point)
            while now - self._points[0].monotonic > _LENGTH:
                self._points.popleft()

    def load(self, uuid: str, seconds: float) -> float | None:
        """Return the share of the last `seconds` in which the GPU was busy, None if less than half is known."""
        pair = self._pair(seconds)
        if pair is None:
            return None
        return _share(*pair, uuid, seconds)

    def loads(self, uuid: str) -> list[tuple[float, float | None]]:
        """Return the GPU's load from one point to the next as (seconds between the end and the newest point, share
        busy), the oldest first; None where it is not known, and in the first entry, which only tells where it begins.
        """
        with self._lock:
            points = list(self._points)
        newest = points[-1].monotonic if points else 0.0
        shares = [None, *(_share(old, new, uuid) for old, new in pairwise(points))]
        return [(newest - point.monotonic, share) for point, share in zip(points, shares, strict=False)]

    def process_load(self, process: str, uuid: str, seconds: float) -> float | None:
        """Return the share of the last `seconds` in which a process kept a GPU busy. One that is younger than that is
        told by its life so far.
        """
        with self._lock:
            window = [p for p in self._points if p.monotonic >= self._points[-1].monotonic - seconds - _STEP / 2]
        known = [(p.monotonic, p.processes[process, uuid]) for p in window if (process, uuid) in p.processes]
        if len(known) < 2 or known[-1][0] < window[-1].monotonic:
            return None
        (begin, before), (end, after) = known[0], known[-1]
        return min(1.0, max(0.0, after - before) / (end - begin))

    def _pair(self, seconds: float) -> tuple[_Point, _Point] | None:
        """Return the newest point and the one `seconds` before it, or the oldest."""
        with self._lock:
            if len(self._points) < 2:
                return None
            new = self._points[-1]
            begin = new.monotonic - seconds - _STEP / 2
            return next(p for p in self._points if p.monotonic >= begin), new


def _share(old: _Point, new: _Point, uuid: str, seconds: float | None = None) -> float | None:
    """Return the share of the time observed in which the GPU was busy, None if that is less than half of `seconds`,
    or of the time between the points.
    """
    try:
        observed = new.observed[uuid] - old.observed[uuid]
        busy = new.busy[uuid] - old.busy[uuid]
    except KeyError:
        return None
    least = _LEAST * (new.monotonic - old.monotonic if seconds is None else seconds)
    return min(1.0, busy / observed) if observed >= least and busy >= 0 else None


def _of_gpu_engine(family: Family | None) -> dict[str, float]:
    return {uuid: x for (uuid, engine), x in by_labels(family, "uuid", "engine").items() if engine == "gpu"}
