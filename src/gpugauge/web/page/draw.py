"""Figures and small drawings as HTML. Everything that comes from outside passes `text`."""

from __future__ import annotations

import html
from collections.abc import Sequence

from gpugauge.text import printable

ABSENT = "-"
_SPAN = 600  # seconds that a sparkline shows, one unit of its width each
_HEIGHT = 40
_WORTH = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def text(value: object) -> str:
    """Return what is shown of a name from outside: never markup, and no control or direction characters."""
    shown = "" if value is None else str(value)
    return html.escape(printable(shown))


def percent(ratio: float | None) -> str:
    """Return a ratio in per cent."""
    return ABSENT if ratio is None else f"{100 * ratio:.0f} %"


def size(amount: float | None) -> str:
    """Return bytes in a unit for people."""
    if amount is None:
        return ABSENT
    for worth, unit in _WORTH:
        if amount >= worth:
            return f"{amount / worth:.1f} {unit}"
    return f"{amount / 1024:.0f} KiB"


def of_sizes(used: float | None, total: float | None) -> str:
    """Return `used / total` in GiB; what is not known is left out."""
    if total is None:
        return size(used)
    return f"{ABSENT if used is None else f'{used / (1 << 30):.1f}'} / {total / (1 << 30):.1f} GiB"


def of_watts(power: float | None, limit: float | None) -> str:
    """Return `power / limit` in watts, in kilowatts from 10 kW; what is not known is left out."""
    if power is None and limit is None:
        return ABSENT
    large = max(power or 0, limit or 0) >= 1e4
    figures = [ABSENT if x is None else f"{x / 1000:.1f}" if large else f"{x:.0f}" for x in (power, limit)]
    return f"{' / '.join(figures if limit is not None else figures[:1])} {'kW' if large else 'W'}"


def duration(seconds: float) -> str:
    """Return a time span by its largest unit."""
    for worth, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= worth:
            return f"{seconds // worth:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def bar(used: float | None, total: float | None) -> str:
    """Draw how much of a total is used; the figure beside it says the same, so it is hidden from screen readers."""
    if used is None or not total:
        return ""
    width = 100 * min(1.0, max(0.0, used / total))
    return (
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="4"/><rect class="fill" width="{width:.1f}" height="4"/></svg>'
    )


def sparkline(history: Sequence[Sequence[float | None]]) -> str:
    """Draw a GPU's load over the last ten minutes as steps from (seconds ago, share) points; gaps stay empty."""
    known = [share for _, share in history if share is not None]
    if not known:
        label, runs = "Load over the last 10 minutes: not known yet", []
    else:
        mean = sum(known) / len(known)
        label = (
            f"Load over the last 10 minutes: mean {percent(mean)}, from {percent(min(known))} to {percent(max(known))}"
        )
        runs = _runs(history)
    areas = "".join(f'<path class="area" d="{_path(run)}V{_HEIGHT}H{run[0][0]:g}Z"/>' for run in runs)
    lines = "".join(f'<path class="line" d="{_path(run)}"/>' for run in runs)
    grid = "".join(f"M0 {y}H{_SPAN}" for y in (0, _HEIGHT / 2, _HEIGHT)) + "".join(
        f"M{x} 0V{_HEIGHT}" for x in range(0, _SPAN + 1, 60)
    )
    return (
        f'<svg class="spark" viewBox="0 -1 {_SPAN} {_HEIGHT + 2}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}"><path class="grid" d="{grid}"/>{areas}{lines}</svg>'
    )


def _runs(history: Sequence[Sequence[float | None]]) -> list[list[tuple[float, float, float]]]:
    """Return the stretches without a gap, each as steps (from x, to x, y)."""
    runs: list[list[tuple[float, float, float]]] = []
    begin: float | None = None
    whole = False  # whether the step before was known
    for ago, share in history:
        end = max(0.0, _SPAN - (ago or 0.0))
        if share is not None and begin is not None:
            step = (begin, end, round(_HEIGHT * (1 - share), 2))
            if whole:
                runs[-1].append(step)
            else:
                runs.append([step])
        whole = share is not None and begin is not None
        begin = end
    return runs


def _path(run: list[tuple[float, float, float]]) -> str:
    (begin, _, first), *_ = run
    return f"M{begin:g} {first:g}" + "".join(f"V{y:g}H{end:g}" for _, end, y in run)
