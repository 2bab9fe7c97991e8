"""Load of GPUs and processes over the last ten minutes, and who used a GPU last, from the published snapshots, in
bounded memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from gpugauge.base.serving import IDLE_SECONDS, IDLE_USE
from gpugauge.node import training
from gpugauge.node.node import Judged, Load, Node
from gpugauge.snapshot import Snapshot
from gpugauge.status.details import all_waits
from gpugauge.status.identity import identities
from gpugauge.status.measured_advice import Subject
from gpugauge.status.model import ProcessStatus, Use

_POINT_SECONDS = 5.0  # between two points
_OVER_SECONDS = 60.0  # for which a trouble that is over may return
_TICK_JITTER_SECONDS = 0.5  # ticks may be 5 s apart, but not exactly: a point may be this much early
_HISTORY_SECONDS = 600.0
_MAX_PROCESSES_PER_POINT = 2048  # (process, uuid) pairs
_MAX_LAST_PROCESSES = 32  # of a GPU
# A mean needs values for at least half of the known part of its window, and for this time.
_MIN_OBSERVED_RATIO, _MIN_OBSERVED_SECONDS = 0.5, 30.0

_NO_LOAD = Load()
_TRAINING = frozenset({"training", "training_on_cpu"})
WASTED_RATIO = 0.5
"""A GPU of which a process loses this share of the time is wasted, one of which it loses less is slowed. A training on
the CPU that waits for data and for a CPU for this share of its time is in trouble.
"""
_STILL_WASTED_RATIO = 0.45

Key = tuple[str, str]  # process, uuid


class Pace(NamedTuple):
    """What a training has done so far. `measured` are the steps with a known duration, and their seconds."""

    measured: tuple[int, float] | None
    samples: int | None
    tokens: int | None


class _Point(NamedTuple):
    monotonic: float
    loads: Mapping[str, Load]  # by uuid
    processes: Mapping[Key, float]
    paces: Mapping[str, Pace]  # by process


class LastUse(NamedTuple):
    """The processes on a GPU when it answered last, at Unix time `timestamp`, and what is kept of the node."""

    timestamp: float
    processes: Mapping[str, ProcessStatus]
    node: Node


def lost_of(judged: Judged) -> float:
    """Return the share that a process loses of its GPU time, or that its waits take of its time on the CPU."""
    if judged.verdict.state == "training_on_cpu" and not judged.verdict.limited_by:
        return sum(share for _, share in all_waits(judged.shares, judged.rest))
    return judged.verdict.lost or 0.0


def is_wasted(lost: float, *, before: bool) -> bool:
    """Return whether a process wastes its GPU. `before`: it did so until now; about half does not change each time."""
    return lost >= (_STILL_WASTED_RATIO if before else WASTED_RATIO)


class History:
    """Ring of points. The sampler's thread feeds it, the server's thread reads it."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._lock = threading.Lock()
        self._last_uses: Mapping[str, LastUse] = {}
        self._reporting: Mapping[str, float] = {}  # monotonic time from which on a process reports through the hook
        self._silent: Mapping[str, float] = {}  # from which on a process with the hook has been there without a report
        self._wasted: frozenset[str] = frozenset()  # the processes that waste their GPU
        self._troubled: Mapping[str, tuple[float, float]] = {}  # Unix time of the begin, and monotonic of the last look
        self._idle: Mapping[str, float] = {}  # seconds in which a process held its GPUs idle, less those of its use
        self._unused: frozenset[str] = frozenset()  # the processes that have not used their GPUs for long
        self._trained: dict[str, Subject] = {}  # what the advice on a training was found by, as long as it is known
        self._now: float  # of the last snapshot: nothing is known before

    def feed(self, snapshot: Snapshot) -> None:
        """Add a point if the newest one is about 5 s old."""
        now = self._now = snapshot.monotonic
        if self._points and now - self._points[-1].monotonic < _POINT_SECONDS - _TICK_JITTER_SECONDS:
            return
        node = snapshot.node
        busy = [(key, use.busy) for key, use in node.uses.items() if use.busy is not None]
        point = _Point(
            now,
            node.loads,
            dict(busy[:_MAX_PROCESSES_PER_POINT]),
            {
                p: Pace(training.measured_steps(s), training.samples(s), training.tokens(s))
                for p, s in node.sessions.items()
            },
        )
        seconds, states = now - (self._points[-1].monotonic if self._points else now), node.judged.items()
        kept = {p: times for p, times in self._troubled.items() if now - times[1] <= _OVER_SECONDS}
        limited = [p for p, judged in states if judged.verdict.limited_by or judged.verdict.state == "stalled"]
        self._troubled = kept | {p: (kept.get(p, (snapshot.timestamp,))[0], now) for p in limited}
        idle = {p: seconds * (1 if j.verdict.state == "held_idle" else 1 - 1 / IDLE_USE) for p, j in states}
        sums = {process: self._idle.get(process, 0.0) + change for process, change in idle.items()}
        self._idle = {process: min(held, IDLE_SECONDS) for process, held in sums.items() if held > 0}
        self._unused = frozenset(p for p, held in self._idle.items() if held >= IDLE_SECONDS or p in self._unused)
        trains = [p for p, judged in states if p in node.sessions and judged.verdict.state in _TRAINING]
        held = (ProcessStatus(process=p, devices=dict.fromkeys(node.held(p), Use(None, None))) for p in trains)
        seen = self._trained | {process.process: Subject.of(process, node) for process in held}
        self._trained = {process: seen[process] for process in seen.keys() & node.sessions.keys()}
        self._last_uses = {**self._last_uses, **_uses(snapshot.timestamp, node)}
        self._reporting = {process: self._reporting.get(process, now) for process in node.sessions}
        silent = [process for process, host in node.hosts.items() if host.hook and process not in node.sessions]
        self._silent = {process: self._silent.get(process, now) for process in silent}
        losses = ((process, lost_of(judged)) for process, judged in node.judged.items())
        self._wasted = frozenset(p for p, lost in losses if is_wasted(lost, before=p in self._wasted))
        with self._lock:
            self._points.append(point)
            while now - self._points[0].monotonic > _HISTORY_SECONDS:
                self._points.popleft()

    def load(self, uuid: str, seconds: float) -> float | None:
        """Return the share of the last `seconds` in which the GPU was busy; None if too little of them was observed."""
        window = self._window(seconds)
        known = next((point for point in window if point.loads.get(uuid, _NO_LOAD).observed is not None), None)
        return _share(known, window[-1], uuid, _MIN_OBSERVED_SECONDS) if known else None

    def wasted(self, process: str) -> bool:
        """Return whether a process wasted its GPU at the newest point."""
        return process in self._wasted

    def unused(self, process: str) -> bool:
        """Return whether a process has not used its GPUs for longer than a program may hold them."""
        return process in self._unused

    def troubled_since(self, process: str) -> float | None:
        """Return the Unix time from which on something limits a process; less than a minute without it counts."""
        return self._troubled[process][0] if process in self._troubled else None

    def loads(self, uuid: str) -> list[tuple[float, float | None]]:
        """Return (age in seconds, share busy) between successive points, the oldest first; None where it is unknown."""
        points = self._window(_HISTORY_SECONDS)
        shares = [None, *(_share(old, new, uuid) for old, new in pairwise(points))]
        return [(points[-1].monotonic - point.monotonic, share) for point, share in zip(points, shares, strict=False)]

    def process_load(self, process: str, uuid: str, seconds: float) -> float | None:
        """Return the share of the last `seconds` in which a process kept a GPU busy, of the time in which the GPU was
        observed, as far as that is known; None if unknown or before 30 s.
        """
        window = self._window(seconds)
        known = [point for point in window if (process, uuid) in point.processes]
        if len(known) < 2 or known[-1] is not window[-1]:
            return None
        old, new = known[0], known[-1]
        before, after = (point.loads.get(uuid, _NO_LOAD).observed for point in (old, new))
        time = new.monotonic - old.monotonic
        observed = time if before is None or after is None else after - before
        required = max(_MIN_OBSERVED_RATIO * time, _MIN_OBSERVED_SECONDS - _TICK_JITTER_SECONDS)
        busy = new.processes[process, uuid] - old.processes[process, uuid]
        return min(1.0, max(0.0, busy) / observed) if observed >= required else None

    def step_seconds(self, process: str, seconds: float) -> float | None:
        """Return the mean time from one step to the next over the last `seconds`, None without a step."""
        paces = self._paces(process, seconds)
        window = [pace.measured for _, pace in paces if pace and pace.measured]
        if not window or not paces[-1][1] or not paces[-1][1].measured:
            return None
        (before, since), (after, until) = window[0], window[-1]
        if len(window) < 2 or before == 0 or after <= before or until <= seconds:
            before, since = 0, 0.0  # since the start of the training
        return (until - since) / (after - before) if after > before else None

    def per_second(self, process: str, counter: Callable[[Pace], int | None], seconds: float) -> float | None:
        """Return the rate of a counter over the last `seconds`, None without two values."""
        window = [(at, counter(pace) if pace else None) for at, pace in self._paces(process, seconds)]
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

    def last_trained(self, process: str) -> Subject | None:
        """Return what was known of a training when it was judged last, None if it never was."""
        return self._trained.get(process)

    def last_use(self, uuid: str) -> LastUse | None:
        """Return who used a GPU when it answered last, None if it has not answered since the start of the daemon."""
        return self._last_uses.get(uuid)

    def _paces(self, process: str, seconds: float) -> list[tuple[float, Pace | None]]:
        return [(point.monotonic, point.paces.get(process)) for point in self._window(seconds)]

    def _window(self, seconds: float) -> list[_Point]:
        with self._lock:
            points = list(self._points)
        return [p for p in points if points[-1].monotonic - p.monotonic <= seconds + _POINT_SECONDS / 2]


def _share(old: _Point, new: _Point, uuid: str, least: float = 0.0) -> float | None:
    """Return the share of the observed time in which the GPU was busy, None if too little was observed."""
    before, after = old.loads.get(uuid, _NO_LOAD), new.loads.get(uuid, _NO_LOAD)
    if before.busy is None or before.observed is None or after.busy is None or after.observed is None:
        return None
    observed, busy = after.observed - before.observed, after.busy - before.busy
    required = max(_MIN_OBSERVED_RATIO * (new.monotonic - old.monotonic), least - _TICK_JITTER_SECONDS)
    return min(1.0, busy / observed) if observed >= required and busy >= 0 else None


def _kept(node: Node) -> Node:
    """Return what is kept about the processes of GPUs that may be lost: what they were and did, and their verdict."""
    sessions = {p: node.sessions[p]._replace(mistakes={}) for p in node.holders if p in node.sessions}
    verdicts = {p: node.judged[p].verdict._replace(undecidable=frozenset()) for p in node.holders if p in node.judged}
    judged = {process: Judged(verdict) for process, verdict in verdicts.items()}
    return Node(node.timestamp, node.monotonic, uses=node.uses, sessions=sessions, judged=judged)


def _uses(timestamp: float, node: Node) -> dict[str, LastUse]:
    known, kept, empty = identities(node, node.holders), _kept(node), Node()
    processes: dict[str, dict[str, ProcessStatus]] = {device.uuid: {} for device in node.shown() if device.up}
    for (process, uuid), use in node.uses.items():
        users = processes.get(uuid, {})
        if use.memory is not None and process in known and len(users) < _MAX_LAST_PROCESSES:
            users[process] = known[process]
    return {uuid: LastUse(timestamp, users, kept if users else empty) for uuid, users in processes.items()}
