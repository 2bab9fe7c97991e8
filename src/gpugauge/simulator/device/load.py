"""Loads as functions of time with exact integrals, so that a mean over any window needs no history."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Protocol


class Load(Protocol):
    """The share of time, 0 to 1, in which a kernel runs."""

    def integral(self, t: float) -> float:
        """Return the busy seconds from time 0 to `t` (negative before 0)."""


class Constant:
    """A constant level."""

    def __init__(self, level: float) -> None:
        self._level = level

    def integral(self, t: float) -> float:
        """See Load."""
        return self._level * t


class Square:
    """`high` for the first `duty` of each period (seconds), then `low`."""

    def __init__(self, high: float, low: float, period: float, duty: float) -> None:
        self._high, self._low, self._period, self._on = high, low, period, duty * period
        self._whole = high * self._on + low * (period - self._on)

    def integral(self, t: float) -> float:
        """See Load."""
        periods, rest = divmod(t, self._period)
        if rest <= self._on:
            return periods * self._whole + self._high * rest
        return periods * self._whole + self._high * self._on + self._low * (rest - self._on)


class Sine:
    """Swings between `low` and `high` once a period (seconds), starting low."""

    def __init__(self, low: float, high: float, period: float) -> None:
        self._middle, self._swing, self._rate = (low + high) / 2, (high - low) / 2, 2 * math.pi / period

    def integral(self, t: float) -> float:
        """See Load."""
        return self._middle * t - self._swing * math.sin(self._rate * t) / self._rate


class Points:
    """Straight lines through [second, level] points; constant outside them, or repeated after the last one."""

    def __init__(self, points: list[list[float]], repeat: bool) -> None:
        self._times = [t for t, _ in points]
        self._levels = [level for _, level in points]
        self._sums = [0.0]
        for i in range(1, len(points)):
            width = self._times[i] - self._times[i - 1]
            self._sums.append(self._sums[-1] + width * (self._levels[i] + self._levels[i - 1]) / 2)
        self._period = self._times[-1] if repeat else 0.0
        self._at_zero = self._from_first(0.0)
        self._whole = self._from_first(self._period) - self._at_zero

    def integral(self, t: float) -> float:
        """See Load."""
        periods, rest = divmod(t, self._period) if self._period else (0.0, t)
        return periods * self._whole + self._from_first(rest) - self._at_zero

    def _from_first(self, t: float) -> float:
        """Return the integral from the first point to `t`."""
        i = bisect_right(self._times, t) - 1
        if i < 0:
            return self._levels[0] * (t - self._times[0])
        past = t - self._times[i]
        if i == len(self._times) - 1:
            return self._sums[i] + self._levels[i] * past
        slope = (self._levels[i + 1] - self._levels[i]) / (self._times[i + 1] - self._times[i])
        return self._sums[i] + past * (self._levels[i] + slope * past / 2)


class Noise:
    """Noise around 0 of at most `amount`: three sines whose rates and phases depend on the seed."""

    def __init__(self, amount: float, seed: int) -> None:
        self._amount = amount / 3
        self._waves = [(rate + 0.13 * math.sin(seed + rate), seed * rate) for rate in (0.7, 1.9, 5.3)]

    def integral(self, t: float) -> float:
        """See Load."""
        return self._amount * sum((math.cos(phase) - math.cos(rate * t + phase)) / rate for rate, phase in self._waves)


class _Sum:
    def __init__(self, parts: list[Load]) -> None:
        self._parts = parts

    def integral(self, t: float) -> float:
        return sum(part.integral(t) for part in self._parts)


_SHAPES = {"constant": Constant, "square": Square, "sine": Sine, "points": Points}


def load(plain: Mapping[str, Any]) -> Load:
    """Return the load for plain data: a shape, its numbers, `noise` and `seed`."""
    numbers = {key: value for key, value in plain.items() if key not in {"shape", "noise", "seed"}}
    shape: Load = _SHAPES[plain["shape"]](**numbers)
    return _Sum([shape, Noise(plain["noise"], plain["seed"])]) if plain.get("noise") else shape
