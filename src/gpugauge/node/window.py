"""The typed values of the last minute, and their increase and mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Generic, NamedTuple, TypeVar

from gpugauge.driver.api import DeviceReading
from gpugauge.node.node import Load, Node, Profiled, Use
from gpugauge.sessions.session import Session
from gpugauge.workload.processfiles import Cgroup

_JITTER_SECONDS = 0.5
_T = TypeVar("_T")
_NO_LOAD, _NOT_PROFILED = Load(), Profiled()


class GpuSample(NamedTuple):
    """What is kept of a GPU: its counters, its power draw and SM clock, and the reasons that lower its clocks."""

    busy: float | None
    observed: float | None
    profiled: float | None
    sm_active: float | None
    tensor_active: float | None
    sent: float | None
    received: float | None
    unaccounted: float | None
    power_milliwatts: int | None
    clock_mhz: int | None
    reasons: Sequence[str] | None
    supported: Sequence[str] | None

    def slowed(self, reason: str) -> int | None:
        """Return 1 while the reason lowers the clocks, 0 while it does not; None if the GPU does not support it."""
        # A driver that does not report the supported reasons supports at least those that it sets.
        if self.reasons is None or reason not in (*(self.supported or ()), *self.reasons):
            return None
        return int(reason in self.reasons)


class Point(NamedTuple):
    """What is kept of one tick. `holders` are the processes with memory on a GPU."""

    at: float  # monotonic seconds
    gpus: Mapping[str, GpuSample]
    uses: Mapping[tuple[str, str], Use]
    holders: frozenset[str]
    sessions: Mapping[str, Session]
    cgroups: Mapping[str, Cgroup]


class Track(Generic[_T]):
    """The samples of one thing in each piece of a window, as (monotonic time, sample)."""

    def __init__(self, pieces: Sequence[Sequence[tuple[float, _T]]]) -> None:
        self._pieces = pieces

    def rise(self, counter: Callable[[_T], float | None]) -> float | None:
        """Return the increase of a counter, None without two values."""
        found = self._rise(counter)
        return found[0] if found else None

    def rate(self, counter: Callable[[_T], float | None]) -> float | None:
        """Return the increase per second, over the part of the window in which the counter exists."""
        found = self._rise(counter)
        return found[0] / found[1] if found else None

    def mean(self, gauge: Callable[[_T], float | None]) -> float | None:
        """Return the mean of a gauge over the samples that have it."""
        values = [value for piece in self._pieces for _, sample in piece if (value := gauge(sample)) is not None]
        return sum(values) / len(values) if values else None

    def _rise(self, counter: Callable[[_T], float | None]) -> tuple[float, float] | None:
        """Return the increase, and the seconds that it took."""
        total = seconds = 0.0
        for piece in self._pieces:
            for end, sample in reversed(piece):  # noqa: B007 - used behind the loop
                if (last := counter(sample)) is not None:
                    break
            else:
                continue
            for begin, sample in piece:  # noqa: B007 - as the last
                if (first := counter(sample)) is not None:
                    break
            if begin != end and first is not None:
                total, seconds = total + risen(first, last), seconds + end - begin
        return (total, seconds) if seconds else None


def risen(before: float, after: float) -> float:
    """Return the increase of a counter; one that was reset has increased by at least its value."""
    return float(after - before if after >= before else after)


class Window:
    """The ticks of the last `seconds`, and the newest `node`. The time between ticks may vary. A part of a window has
    one or several `pieces`; the time between them is no part of it.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds, self.node = seconds, Node()
        self.points: deque[Point] = deque()
        self.pieces: Sequence[Sequence[Point]] = (self.points,)
        self._parts: dict[tuple[tuple[float, ...], ...], Window] = {}
        self.cache: dict[object, Any] = {}
        """Cache for callers, for values computed from this window alone; emptied at the next tick."""

    def add(self, node: Node) -> None:
        """Add one tick."""
        self.node, self._parts, self.cache = node, {}, {}
        gpus = {device.uuid: _sample(node, device.uuid, device.reading) for device in node.devices if device.up}
        cgroups = {process: host.cgroup for process, host in node.hosts.items()}
        self.points.append(Point(node.monotonic, gpus, node.uses, node.holders, node.sessions, cgroups))
        while self.points[0].at < node.monotonic - self.seconds:
            self.points.popleft()

    @property
    def span(self) -> float:
        """Seconds between the first and the last point of each piece, rounded: ticks vary by some milliseconds."""
        return round(sum(piece[-1].at - piece[0].at for piece in self.pieces if piece), 1)

    def where(self, present: Callable[[Point], bool]) -> Window:
        """Return the part of the window whose points are `present`."""
        return self._part([[point for point in self.points if present(point)]])

    def without(self, left_out: Callable[[Point, Point], bool]) -> Window:
        """Return the part of the window without the intervals between two points that are left out."""
        pieces: list[list[Point]] = []
        for before, after in pairwise(self.points):
            if left_out(before, after):
                continue
            if not pieces or pieces[-1][-1] is not before:
                pieces.append([before])
            pieces[-1].append(after)
        return self._part(pieces)

    def intervals(self, length: int) -> list[tuple[Window, Window]]:
        """Return the parts of the window with `length` ticks, each also up to the end of its piece. A shorter one at
        the end belongs to the one before it, and a shorter piece is left out.
        """
        found = []
        for points in map(list, self.pieces):
            begins = list(range(0, len(points) - length, length))
            for begin, end in zip(begins, (*begins[1:], len(points) - 1), strict=False):
                found.append((self._part([points[begin : end + 1]]), self._part([points[begin:]])))
        return found

    def recent(self, seconds: float) -> Window:
        """Return the part of the window in the last `seconds`, at least the last two points."""
        earliest = self.points[-1].at - seconds - _JITTER_SECONDS
        late = [point for point in self.points if point.at >= earliest]
        return self._part([late if len(late) > 1 else list(self.points)[-2:]])

    def _part(self, pieces: list[list[Point]]) -> Window:
        """Return the window of these pieces; the same one to all who ask for it before the next tick."""
        if len(pieces) == 1 and len(pieces[0]) == len(self.points):
            return self
        times = tuple(tuple(point.at for point in piece) for piece in pieces)
        part = self._parts.get(times)
        if part is None:
            part = self._parts[times] = Window(self.seconds)
            part.points, part.pieces, part.node = deque(chain.from_iterable(pieces)), pieces, self.node
        return part

    def _track(self, of: Callable[[Point], _T | None], *key: object) -> Track[_T]:
        found: Track[_T] | None = self.cache.get(key)
        if found is None:
            found = self.cache[key] = Track(
                [[(p.at, its) for p in piece if (its := of(p)) is not None] for piece in self.pieces]
            )
        return found

    def gpu(self, uuid: str) -> Track[GpuSample]:
        """Return the samples of a GPU."""
        return self._track(lambda point: point.gpus.get(uuid), Window.gpu, uuid)

    def use(self, process: str, uuid: str) -> Track[Use]:
        """Return what a process used of a GPU."""
        return self._track(lambda point: point.uses.get((process, uuid)), Window.use, process, uuid)

    def session(self, process: str) -> Track[Session]:
        """Return the session of a process."""
        return self._track(lambda point: point.sessions.get(process), Window.session, process)

    def cgroup(self, process: str) -> Track[Cgroup]:
        """Return the cgroup of a process."""
        return self._track(lambda point: point.cgroups.get(process), Window.cgroup, process)


def _sample(node: Node, uuid: str, reading: DeviceReading) -> GpuSample:
    return GpuSample(
        *node.loads.get(uuid, _NO_LOAD),
        *node.profiled.get(uuid, _NOT_PROFILED),
        node.unaccounted.get(uuid),
        reading.power_milliwatts,
        reading.clock_sm_mhz,
        reading.clocks_event_reasons,
        reading.clocks_event_reasons_supported,
    )
