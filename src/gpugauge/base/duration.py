"""Durations as Prometheus and Go write them: 90s, 10m, 1h30m, 1.5h, 250ms."""

from __future__ import annotations

import re

# The units of Prometheus (y to ms) and of Go (h to ns, https://pkg.go.dev/time#ParseDuration).
_SECONDS = {
    "y": 365 * 86400.0,
    "w": 7 * 86400.0,
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "\u00b5s": 1e-6,  # with the micro sign
    "\u03bcs": 1e-6,  # with the Greek letter
    "ns": 1e-9,
}
_PART = re.compile(r"([0-9]{1,19}(?:\.[0-9]*)?|\.[0-9]+)(ms|us|\u00b5s|\u03bcs|ns|[ywdhms])")
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?\s*", re.IGNORECASE)
_UNITS_OF_FORMAT = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration: numbers with units, or a bare 0. Raises ValueError with a sentence."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"a duration is written like 90s, 10m or 1h30m, not {text[:40]!r}")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def seconds(value: object) -> object:
    """Return the seconds of text such as 1h30m or 5400, and any other value as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    return float(value) if _NUMBER.fullmatch(value) else parse_duration(value)


def format_duration(seconds: int) -> str:
    """Return whole seconds as Prometheus writes them, in the largest of d, h, m, s that divides them."""
    unit = next(unit for unit, size in _UNITS_OF_FORMAT.items() if seconds % size == 0)
    return f"{seconds // _UNITS_OF_FORMAT[unit]}{unit}"
