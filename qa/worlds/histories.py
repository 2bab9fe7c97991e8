"""Drawn histories of memory with the truth known from the drawing: a level without noise, by the progress in steps."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30

Level = Callable[[float], float]


@dataclass(frozen=True)
class History:
    """`level` is the memory by steps without noise, `samples` are (steps, seconds, bytes)."""

    kind: str
    level: Level
    samples: tuple[tuple[float, float, float], ...]
    growth: float | None  # per step, if it is the same all the time and the noise lets it be seen

    def truth(self, since: float, until: float) -> float:
        """Return the mean growth per step between two moments."""
        return (self.level(until) - self.level(since)) / (until - since)


def _flat(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    return lambda x: 0.0, None


def _leak(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    rise = 10 ** draw.uniform(math.log10(4 * MIB), math.log10(40 * GIB))
    return lambda x: rise * x / steps, rise / steps


def _late_leak(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    rise, start = 10 ** draw.uniform(math.log10(4 * MIB), math.log10(40 * GIB)), draw.uniform(0.05, 0.9) * steps
    return lambda x: rise * max(0.0, x - start) / (steps - start), None


def _stairs(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    """A list that grows every so many steps."""
    rise, count = 10 ** draw.uniform(7, 10), draw.choice([3, 10, 50, 200, 1000])
    return lambda x: rise * math.floor(count * x / steps) / count, None


def _sawtooth(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    height, period = 10 ** draw.uniform(7, 10.5), steps / draw.choice([1.5, 2.5, 4, 9, 30, 100, 400, 2000])
    shift = draw.uniform(0, period)
    return lambda x: height * ((x + shift) % period) / period, None


def _waves(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    height, period = 10 ** draw.uniform(7, 10.5), steps / draw.choice([0.7, 1.5, 2.5, 4, 9, 30, 400])
    shift = draw.uniform(0, period)
    return lambda x: height * (1 + math.sin(2 * math.pi * (x + shift) / period)), None


def _saturates(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    height, scale = 10 ** draw.uniform(7, 10.5), steps / draw.choice([1, 3, 10, 30, 100, 1000])
    return lambda x: height * (1 - math.exp(-x / scale)), None


def _cache(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    """A cache that is filled evenly, and then full."""
    height, full = 10 ** draw.uniform(7, 10.5), draw.uniform(0.01, 0.95) * steps
    return lambda x: height * min(1.0, x / full), None


def _root(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    height, power = 10 ** draw.uniform(7, 10.5), draw.uniform(0.2, 0.9)
    return lambda x: height * (x / steps) ** power, None


def _phases(draw: random.Random, steps: float) -> tuple[Level, float | None]:
    """Several parts, each flat or growing, with jumps up and down between them."""
    bounds = sorted(draw.uniform(0, steps) for _ in range(draw.randint(1, 6)))
    begins = [0.0, *bounds]
    slopes = [draw.choice([0.0, 0.0, 1.0]) * 10 ** draw.uniform(7, 10.5) / steps for _ in begins]
    jumps = [draw.choice([0.0, draw.uniform(-1, 1)]) * 10 ** draw.uniform(7, 10.5) for _ in begins]

    def level(x: float) -> float:
        total = 20.0 * GIB
        for i, begin in enumerate(begins):
            if x <= begin:
                break
            end = begins[i + 1] if i + 1 < len(begins) else math.inf
            total += jumps[i] + slopes[i] * (min(x, end) - begin)
        return total

    return level, None


KINDS = (*(_flat, _leak, _late_leak, _stairs, _sawtooth, _waves, _saturates, _cache, _root, _phases),)


def _noise(draw: random.Random, kind: str, size: float) -> Iterator[float]:
    wander = 0.0
    while True:
        if kind == "none":
            yield 0.0
        elif kind == "even":
            yield draw.uniform(0, size)
        elif kind == "normal":
            yield draw.gauss(0, size / 3)
        elif kind == "spikes":
            yield size * 10 * (draw.random() < 0.1) * draw.random()
        elif kind == "two":
            yield size * (draw.random() < 0.5)
        elif kind == "wander":
            wander += 0.05 * (draw.gauss(0, size) - wander)
            yield wander


NOISES = ("none", "even", "normal", "spikes", "two", "wander")


def history(draw: random.Random) -> History:
    """Return a drawn history: a kind, with noise, jitter of the samples, pauses, and a rounding to blocks."""
    kind = draw.choice(KINDS)
    count = round(10 ** draw.uniform(1.5, 3.7))
    every = draw.choice([1.0, 2.0, 5.0, 5.0, 10.0])
    step = 10 ** draw.uniform(-2, 1)
    steps = max(2.0, count * every / step)
    level, growth = kind(draw, steps)
    rise = abs(level(steps) - level(0.0)) or 10 ** draw.uniform(7, 10)
    noise_kind, size = draw.choice(NOISES), rise * 10 ** draw.uniform(-4, 0)
    noise, block = _noise(draw, noise_kind, size), draw.choice([512, 2 * MIB])
    time, progress = 0.0, 0.0
    samples: list[tuple[float, float, float]] = []
    unrounded: dict[float, float] = {}
    pauses = draw.choice([0.0, 0.0, 0.01])
    while len(samples) < count:
        taken = every * draw.uniform(0.8, 1.3)
        time += taken
        if draw.random() < pauses:
            time += draw.uniform(5, 300)
        progress = min(steps, progress + taken / step)
        value = 8.0 * GIB + level(math.floor(progress)) + next(noise)
        samples.append((float(math.floor(progress)), time, float(round(value / block) * block)))
        unrounded.setdefault(samples[-1][0], value)
    if noise_kind == "wander":
        # Memory that wanders slowly is a level of its own: it cannot be told from growth.
        known = sorted(unrounded)
        level = lambda x: unrounded[known[bisect_right(known, x) - 1]]  # noqa: E731 - one of two kinds
    clear = growth if count >= 100 and rise >= 64 * MIB and size <= rise / 50 and noise_kind != "wander" else None
    return History(kind.__name__.strip("_"), level, tuple(samples), clear)
