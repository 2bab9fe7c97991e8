"""The counters of `gpu_metrics`, of differing units: believed only once they agree with instantaneous values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from gpugauge.driver.amd.table import RESIDENCIES, Table

_MIN_SECONDS = 0.5  # between two readings of a counter: the firmware updates the table in steps
_TICKS_PER_SECOND = (10.0, 1e6)  # of the cycle counter; 1000 where it was measured
# The factor of the accumulator for percentages: a cycle of full load adds 100 in the firmware that was seen, or 1.
_UNITS = (1.0, 100.0)
# For the calibration: the numbers of readings, and the mean load that it takes.
_MIN_READINGS, _MAX_READINGS = 20, 120
_MIN_PERCENT = 10.0
_FULL_PERCENT = 101.5  # with the rounding of both counters
_SOURCES = (("gfx_acc", "gfx"), ("xcc_acc", "xcc_busy"))  # accumulators, and the same in percent, at an instant


class _Point(NamedTuple):
    accumulators: tuple[int, ...]
    cycles: int
    at: float


class Load:
    """The mean load between two readings: the rise of the accumulator in a cycle, in the unit that fits percentages."""

    def __init__(self) -> None:
        self.hertz: float | None = None
        """The cycles per second."""
        self._last: _Point | None = None
        self._unit: float | None = None
        self._readings = self._percents = self._rise = self._ticks = 0.0  # sums of the calibration

    def restart(self) -> None:
        """Begin again, because the counters may have stood still or started again."""
        self._last = None

    def add(self, table: Table, now: float) -> tuple[float, float] | None:
        """Return the mean percentage since the last reading, and the seconds since then; None without one."""
        # With partitions, some firmware has no values of the whole GPU.
        names = next((pair for pair in _SOURCES if table.values.keys() >= set(pair)), None)
        cycles = table.one("counter")
        if names is None or cycles is None:
            return None
        accumulators, percents = (table.values[name] for name in names)
        point, last = _Point(accumulators, cycles, now), self._last
        if last is None or len(last.accumulators) != len(accumulators):
            self._last = point
            return None
        seconds, ticks = now - last.at, (cycles - last.cycles) % (1 << table.bits["counter"])
        if seconds < _MIN_SECONDS or not ticks:
            return None
        self._last = point
        if not self._ticked(ticks / seconds):
            return None
        wrap = 1 << table.bits[names[0]]
        rise = sum((new - old) % wrap for new, old in zip(accumulators, last.accumulators, strict=True))
        share, percent = rise / len(accumulators) / ticks, sum(percents) / len(percents)
        self._calibrate(share, ticks, percent)
        if self._unit is None or share * self._unit > _FULL_PERCENT:
            return None
        return min(100.0, share * self._unit), seconds

    @property
    def _mean(self) -> float:
        return self._percents / max(1.0, self._readings)

    def _ticked(self, hertz: float) -> bool:
        """Return whether the cycle counter went on as before; it starts again with the firmware."""
        low, high = _TICKS_PER_SECOND
        before = self.hertz or hertz
        self.hertz = hertz if low <= hertz <= high and 0.5 < hertz / before < 2 else None
        return self.hertz is not None

    def _calibrate(self, share: float, ticks: float, percent: float) -> None:
        """Find the unit. A single percentage is that of an instant: their mean counts, within its error."""
        if self._readings >= _MAX_READINGS:
            self._forget(0.5)
        self._readings += 1
        self._percents += percent
        self._rise += share * ticks
        self._ticks += ticks
        if self._readings < _MIN_READINGS or self._mean < _MIN_PERCENT:
            return
        mean = self._rise / self._ticks
        if self._unit is None or not self._fits(mean * self._unit, 5):
            fitting = [unit for unit in _UNITS if 1 / 3 < mean * unit / self._mean < 3 and self._fits(mean * unit, 3)]
            self._unit = fitting[0] if fitting else None
            if not fitting:
                self._forget(0.0)

    def _forget(self, kept: float) -> None:
        self._readings, self._percents = self._readings * kept, self._percents * kept
        self._rise, self._ticks = self._rise * kept, self._ticks * kept

    def _fits(self, mean: float, deviations: float) -> bool:
        likely = (self._percents / 100 + 1) / (self._readings + 2)
        return abs(mean - self._mean) <= 2 + 100 * deviations * math.sqrt(likely * (1 - likely) / self._readings)


class Energy:
    """Whether the energy counter is believed: some count nothing, or in another unit than 2^-16 J."""

    _SECONDS, _READINGS = 10.0, 3

    def __init__(self) -> None:
        self._believed = False
        self._since: tuple[int, float] | None = None
        self._watts: list[float] = []

    def add(self, count: int | None, watts: float | None, now: float) -> int | None:
        """Return the energy in millijoules, None unless it rises about as the power says."""
        if count is None or not watts or (self._since and count < self._since[0]):
            self._believed, self._since, self._watts = False, None, []
            return None
        self._watts.append(watts)
        if self._since is None:
            self._since = count, now
        elif now - self._since[1] >= self._SECONDS and len(self._watts) >= self._READINGS:
            joules = (count - self._since[0]) / 65536
            ratio = joules / (sum(self._watts) / len(self._watts) * (now - self._since[1]))
            self._believed, self._since, self._watts = 0.25 < ratio < 4, (count, now), []
        return count * 1000 >> 16 if self._believed else None


# The reasons for lower clocks by the residencies of the firmware.
REASONS = dict(
    zip(
        RESIDENCIES,
        ("hw_slowdown", "sw_power_cap", "hw_thermal_slowdown", "vr_thermal_slowdown", "memory_thermal_slowdown"),
        strict=True,
    )
)
_MILLISECOND_HERTZ = (980.0, 1020.0)  # a cycle is a millisecond


class Residencies:
    """The time of each reason for lower clocks. One that always applies, or to an idle GPU, is not filled."""

    def __init__(self) -> None:
        self._last: Mapping[str, int] = {}
        self._refused: set[str] = set()

    def add(self, table: Table, load: Load, idle: bool) -> tuple[list[str], dict[str, int]] | None:
        """Return the reasons that apply now, and nanoseconds by reason; None unless they are known."""
        found = {name: table.values[name][0] for name in ("counter", *RESIDENCIES) if name in table.values}
        last, self._last = self._last, found
        low, high = _MILLISECOND_HERTZ
        if "counter" not in last or "counter" not in found or not low <= (load.hertz or 0.0) <= high:
            return None
        ticks = (found["counter"] - last["counter"]) % (1 << table.bits["counter"])
        if not 0 < ticks < 200_000:
            return None
        active, nanoseconds = [], {}
        for name, reason in REASONS.items():
            if name not in last or name not in found:
                continue
            share = (found[name] - last[name]) % (1 << table.bits[name]) / ticks
            wrap = 1 << min(table.bits[name], table.bits["counter"])
            behind = (found["counter"] - found[name]) % wrap
            if behind <= 0.05 * (found["counter"] % wrap) or (idle and share > 0.5) or share > 1.05:
                self._refused.add(name)
            if name not in self._refused:
                nanoseconds[reason] = found[name] * 1_000_000
                active += [reason] if share > 0.5 else []
        return (active, nanoseconds) if nanoseconds else None
