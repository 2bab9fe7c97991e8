"""The memory of trainings: room for a larger batch, fragmentation, time until it is full, imbalance between ranks. The
growth of a quantity that is sampled at like moments, such as the memory after each step. It is stated only where the
samples allow one answer: a level that swings, saturates or has just changed has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

_POINTS = 32  # of each resolution: those of the next one are twice as far apart
_COARSER = 4  # resolutions from that of a growth on, in which no fall is like it
_MIN_RISE = 1 << 20  # bytes over all points: less is how an allocator rounds
# As shares of the rise over all points: how far points may lie from the line, the newest ones too, and a fall.
_MAX_DEVIATION, _MAX_DRIFT, _MAX_FALL = 0.06, 0.05, 0.3
_NEWEST = 4  # points of each finer resolution
# Half the width of the interval: in deviations over the span, and at least, as a share of the growth.
_DEVIATIONS, _MIN_HALF = 4.0, 0.08


class Point(NamedTuple):
    """A sample: the progress (steps, or seconds), the time in seconds, and the value."""

    progress: float
    time: float
    value: float


class Growth(NamedTuple):
    """Growth by each unit of progress, and in each second, from the progress `since` to `until`."""

    expected: float
    lower: float
    upper: float
    per_second: float
    since: float
    until: float


class Series:
    """The samples of one quantity since it began, in resolutions of 1, 2, 4 … samples. A point is the lowest sample of
    its time: what swings above a level does not matter.
    """

    def __init__(self) -> None:
        self._levels: list[deque[Point]] = []
        self._open: list[Point | None] = []  # by level, the first of the two points of the next one
        self._found: list[_Line | None] = []  # by level

    def add(self, progress: float, time: float, value: float) -> None:
        """Add a sample. Progress that falls begins the series again; a sample without progress does not count."""
        if self._levels and progress <= self._levels[0][-1].progress:
            if progress == self._levels[0][-1].progress:
                return
            self.__init__()  # type: ignore[misc]  # begins again
        point, level = Point(progress, time, value), 0
        while True:
            if level == len(self._levels):
                self._levels.append(deque(maxlen=_POINTS))
                self._open.append(None)
                self._found.append(None)
            self._levels[level].append(point)
            kept = self._levels[level]
            self._found[level] = _line(list(kept)) if len(kept) == _POINTS else None
            first = self._open[level]
            if first is None:
                self._open[level] = point
                return
            self._open[level], point = None, min(first, point, key=lambda p: p.value)
            level += 1

    @property
    def growth(self) -> Growth | None:
        """The growth over the longest time in which it was steady until now; None if it cannot be decided."""
        for level in reversed(range(len(self._levels))):
            found = self._found[level]
            if found is not None and self._lasts(level, found):
                return found.growth
        return None

    def _lasts(self, level: int, found: _Line) -> bool:
        """Return whether no fall in a longer time, and nothing newer, speaks against a growth."""
        if any(_fall(coarser) > _MAX_FALL * found.rise for coarser in self._levels[level : level + _COARSER]):
            return False
        most = max(found.deviation, _MAX_DRIFT * found.rise)
        for finer in self._levels[:level]:
            newest = [p.value - found.at(p.progress) for p in list(finer)[-_NEWEST:]]
            if min(newest) > most or min(newest) < -most:
                return False
        return True


class _Line(NamedTuple):
    """A steady growth over the points of a resolution. `deviation` is how far points lie from it."""

    growth: Growth
    start: float  # value at progress 0
    rise: float
    deviation: float

    def at(self, progress: float) -> float:
        return self.start + self.growth.expected * progress


def _line(points: list[Point]) -> _Line | None:
    """Return the growth over points, None if it is not steady."""
    slope, start = _fit(points)
    begin, end = points[0], points[-1]
    span = end.progress - begin.progress
    rise = slope * span
    if rise < _MIN_RISE:
        return None
    deviation = max(abs(p.value - start - slope * p.progress) for p in points)
    if deviation > _MAX_DEVIATION * rise:
        return None
    # Of steps, such as a list that grows every thousand steps, the line differs from the growth between the two ends.
    ends = abs((end.value - begin.value) / span - slope) + deviation / span
    half = max(_DEVIATIONS * deviation / span, ends, _MIN_HALF * slope)
    growth = Growth(slope, slope - half, slope + half, rise / (end.time - begin.time), begin.progress, end.progress)
    return _Line(growth, start, rise, deviation)


def _fit(points: list[Point]) -> tuple[float, float]:
    """Return the slope and the value at progress 0 of the line of least squares."""
    count = len(points)
    mean = sum(p.progress for p in points) / count
    level = sum(p.value for p in points) / count
    square = sum((p.progress - mean) ** 2 for p in points)
    slope = sum((p.progress - mean) * (p.value - level) for p in points) / square
    return slope, level - slope * mean


def _fall(points: deque[Point]) -> float:
    """Return the largest fall from a point to a later one."""
    highest, fall = points[0].value, 0.0
    for point in points:
        highest = max(highest, point.value)
        fall = max(fall, highest - point.value)
    return fall


_MOST_SECONDS = 30 * 86_400.0  # a time until full that is longer says nothing


class DeviceMemory(NamedTuple):
    """Bytes of one process on one GPU; None where they are not known. `peak` is the highest of all reports. `was_reset`
    states that the program has reset the allocator's peak.
    """

    free: float | None = None  # of the GPU or MIG device, for all processes
    limit: float | None = None  # of the process
    reserved: float | None = None
    peak: float | None = None
    after_step: float | None = None
    was_reset: bool = False

    @property
    def headroom(self) -> float | None:
        """Bytes that tensors can take beyond their peak: what the GPU has left, and the part of the cache that no
        tensor has ever needed.
        """
        if self.free is None or self.limit is None or self.reserved is None or self.peak is None:
            return None
        return min(self.free, max(0.0, self.limit - self.reserved)) + max(0.0, self.reserved - self.peak)

    @property
    def batch_ratio(self) -> float | None:
        """Factor by which the batch can grow: at most all memory that a step takes and returns grows with it."""
        space = self.headroom
        if space is None or self.after_step is None or self.peak is None or self.peak <= self.after_step:
            return None
        return 1.0 + space / (self.peak - self.after_step)

    @property
    def fragmentation(self) -> float | None:
        """Share of the held memory that tensors did not need even at their peak."""
        if self.was_reset or self.peak is None or not self.reserved:
            return None
        return max(0.0, 1.0 - self.peak / self.reserved)


def seconds_until_full(space: float | None, growth: Growth | None) -> float | None:
    """Return the time after which a growth that goes on has taken the room."""
    if space is None or growth is None or growth.per_second <= 0:
        return None
    seconds = space / growth.per_second
    return seconds if seconds <= _MOST_SECONDS else None


def least_batch_ratio(devices: Collection[DeviceMemory]) -> float | None:
    """Return the factor of the GPU with the least room, None if that of one is not known."""
    known = [ratio for device in devices if (ratio := device.batch_ratio) is not None]
    return min(known) if known and len(known) == len(devices) else None


def rank_ratios(peaks: Mapping[str, float]) -> dict[str, float]:
    """Return the peak of each rank of a job by that of the middle rank; empty for a single rank."""
    ordered = sorted(peaks.values())
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2 if len(ordered) > 1 else 0.0
    return {rank: peak / middle for rank, peak in peaks.items()} if middle else {}
