"""Values of the status in the cells of a table; an unknown one is `-`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpugauge.base.text import printable
from gpugauge.status.words import percent


def safe(text: object) -> str:
    """Return text without control characters, "" for None: names come from outside, and must not control the
    terminal.
    """
    return printable(str(text or ""))


def ratio(value: float | None) -> str:
    """Return a ratio in per cent."""
    return "-" if value is None else percent(value)


def load_of(gpu: Mapping[str, Any], key: str) -> str:
    """Return a load of a GPU; one in MIG mode reports none, its MIG devices do."""
    return "MIG" if gpu[key] is None and gpu.get("mig") else ratio(gpu[key])


def pair(used: str, total: str) -> str:
    """Return two values as `used/total`."""
    return "-" if used == total == "-" else f"{used}/{total}"


def gib(size: float | None) -> str:
    """Return a size of bytes in GiB."""
    return "-" if size is None else f"{size / (1 << 30):.1f}"


def number(value: float | None) -> str:
    """Return a value without decimals."""
    return "-" if value is None else f"{value:.0f}"


def age(started: float | None, now: float) -> str:
    """Return the time since a start in its largest unit, as `2h`. Both are Unix times."""
    if started is None:
        return "-"
    seconds = max(0, int(now - started))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
