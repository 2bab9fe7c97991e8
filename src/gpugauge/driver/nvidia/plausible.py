"""Checks of values. GPUs have been observed to return SUCCESS with 0xFFFFFFFF, 255 % or an empty text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], bool]

NOT_AVAILABLE = 0xFFFFFFFF  # NVML's value of 32 bits where it has none
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS; 18 up to NVLink 5


def _between(low: float, high: float) -> Check:
    return lambda value: low <= value <= high  # false for NaN


def _anything(_value: object) -> bool:
    return True


def _some_text(value: str) -> bool:
    return bool(value.strip())


def _major_and_minor(value: tuple[int, int]) -> bool:
    return 0 < value[0] < 1000 and 0 <= value[1] < 1000


def each(check: Check) -> Check:
    """Return a check of every value of a mapping."""
    return lambda values: all(check(value) for value in values.values())


ANY: Check = _anything  # checked by its reader
TEXT: Check = _some_text
CAPABILITY: Check = _major_and_minor
FLAG = _between(0, 1)
PERCENT = _between(0, 100)
FAN_PERCENT = _between(0, 250)  # of the highest speed with acceptable noise; more than 100 is possible
RPM = _between(0, 100_000)
BYTES = _between(0, 1 << 50)
MILLIWATTS = _between(0, 10_000_000)
LIMIT = _between(1, 10_000_000)
COUNTER = _between(0, (1 << 63) - 1)  # see Rising, too
PAGES = _between(0, 1 << 12)  # retired; 64 up to Volta
ROWS = _between(0, 1 << 16)  # remapped
CELSIUS = _between(1, 200)  # GPUs without the sensor return 0
MEGAHERTZ = _between(0, 100_000)
MIB_PER_SECOND = _between(0, 1e8)
MEGABYTES_PER_SECOND = _between(0, 1e8)
COUNT = _between(1, 1 << 24)
NUMBER = _between(0, 1 << 16)
XID = _between(0, 1 << 10)
NODE = _between(0, 1 << 10)  # -1: the GPU belongs to no NUMA node
LANES = _between(1, 32)
LINKS = _between(0, MAX_LINKS)
GPUS = _between(0, 256)  # of one machine
MIG_DEVICES = _between(0, 256)  # of one GPU; 7 up to Blackwell
P_STATE = _between(0, 15)
BITS = _between(0, (1 << 32) - 2)
MODE = _between(0, 100)


# By field, the most by which a counter can rise in a second: 10 kW, a second of throttling, 10 TB of NVLink traffic.
_MOST_PER_SECOND = {
    "energy_millijoules": 1e7,
    "clocks_event_nanoseconds": 1e9,
    "nvlink_transmitted_bytes": 1e13,
    "nvlink_received_bytes": 1e13,
}
_MOST_ERRORS_PER_SECOND = 1e7
_LIFE_SECONDS = 3.2e8  # ten years


class Rising:
    """A counter of a field. Of a single low reading, rate() would make an increase by the whole counter: that it falls
    is plausible when the next reading is low, too. It cannot rise by more than the hardware can do.
    """

    def __init__(self, field: str) -> None:
        self._most = _MOST_PER_SECOND.get(field, _MOST_ERRORS_PER_SECOND)
        self._doubted = False
        self._known: list[tuple[int, float]] = []  # values and times: the last one, and that before it fell

    def plausible(self, value: int, now: float) -> bool:
        """Return whether a reading at `now` (seconds) is plausible after the ones before."""
        if value > self._most * _LIFE_SECONDS:
            return False
        rises = [last <= value <= last + self._most * (1 + now - then) for last, then in self._known]
        if not rises or any(rises):
            self._known, self._doubted = [(value, now)], False
            return True
        last = self._known[0]
        self._doubted = value < last[0] and not self._doubted
        if self._doubted or value >= last[0]:
            return False
        self._known = [(value, now), last]  # a reset, or garbage twice
        return True
