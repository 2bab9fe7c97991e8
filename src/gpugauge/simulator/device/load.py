"""Loads as functions of time with exact integrals, so that a mean over any window needs no history."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

# Returns the busy seconds of a GPU from time 0 to a time, negative before 0.
Load: TypeAlias = Callable[[float], float]


def load(plain: Mapping[str, Any]) -> Load:
    """Return the load of plain data, which names a shape and its numbers (scenario/loadspec.py)."""
    return _SHAPES[plain["shape"]](**{key: value for key, value in plain.items() if key != "shape"})


def _constant(level: float) -> Load:
    return lambda t: level * t


def _square(high: float, low: float, period: float, duty: float) -> Load:
    on = duty * period
    whole = high * on + low * (period - on)

    def integral(t: float) -> float:
        periods, rest = divmod(t, period)
        if rest <= on:
            return periods * whole + high * rest
        return periods * whole + high * on + low * (rest - on)

    return integral


def _sine(low: float, high: float, period: float) -> Load:
    middle, swing, rate = (low + high) / 2, (high - low) / 2, 2 * math.pi / period
    return lambda t: middle * t - swing * math.sin(rate * t) / rate


def _points(points: Sequence[tuple[float, float]], repeat: bool) -> Load:
    times = [t for t, _ in points]
    areas = ((after - before) * (level + last) / 2 for (before, last), (after, level) in pairwise(points))
    sums = list(accumulate(areas, initial=0.0))

    def from_first(t: float) -> float:
        i = bisect_right(times, t) - 1
        start, level = points[max(i, 0)]
        past = t - start
        if not 0 <= i < len(points) - 1:
            return sums[max(i, 0)] + level * past
        end, later = points[i + 1]
        return sums[i] + past * (level + (later - level) / (end - start) * past / 2)

    period, at_zero = times[-1] if repeat else 0.0, from_first(0.0)
    whole = from_first(period) - at_zero

    def integral(t: float) -> float:
        periods, rest = divmod(t, period) if period else (0.0, t)
        return periods * whole + from_first(rest) - at_zero

    return integral


_SHAPES: dict[str, Callable[..., Load]] = {"constant": _constant, "square": _square, "sine": _sine, "points": _points}
