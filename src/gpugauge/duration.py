"""Lengths of time as Prometheus and Go write them: 90s, 10m, 1h30m, 1.5h."""

from __future__ import annotations

import re

_SECONDS = {"y": 365 * 86400.0, "w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PATTERN = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _SECONDS))


def parse_duration(text: str) -> float:
    """Return the seconds; raises ValueError with a sentence."""
    found = _PATTERN.fullmatch(text)
    if not text or not found:
        raise ValueError(f"a duration is written like 90s, 10m or 1h30m, not {text[:40]!r}")
    return sum(float(number) * _SECONDS[unit] for unit, number in found.groupdict(default="0").items())
