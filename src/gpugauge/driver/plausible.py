"""Whether a value can be true. Cards have been seen to answer SUCCESS with 0xFFFFFFFF, 255 % or an empty text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], bool]


def _between(low: int, high: int) -> Check:
    return lambda value: low <= value <= high


def _anything(_value: object) -> bool:
    return True


def _some_text(value: str) -> bool:
    return bool(value.strip())


def _major_and_minor(value: tuple[int, int]) -> bool:
    return 0 < value[0] < 1000 and 0 <= value[1] < 1000


ANY: Check = _anything  # the reader has checked it already
TEXT: Check = _some_text
CAPABILITY: Check = _major_and_minor
PERCENT = _between(0, 100)
BYTES = _between(0, 1 << 50)
MILLIWATTS = _between(0, 10_000_000)
MILLIJOULES = _between(0, (1 << 63) - 1)
CELSIUS = _between(1, 200)  # 0 is what boards without the sensor answer
MEGAHERTZ = _between(0, 100_000)
COUNT = _between(1, 1 << 24)
NUMBER = _between(0, 1 << 16)
P_STATE = _between(0, 15)
