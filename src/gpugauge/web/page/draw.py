"""Numbers and small charts as HTML. All text from outside is escaped by `text`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpugauge.base.text import printable
from gpugauge.status.words import percent

ABSENT = "-"
_MAX_NAME_CHARACTERS = 120
_SPARKLINE_SECONDS = 600  # also its width: one unit a second
_SPARKLINE_HEIGHT = 40
# Of the commands in advice and in repairs, those that end programs.
_ENDS = re.compile(r"^(?:kill|scancel|kubectl drain|systemctl reboot)\b|reset\b")
# As html.escape does, whose module loads a table of all entities: 0.4 MB of the daemon's memory.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def text(value: object) -> str:
    """Return a value from outside as escaped text without control or direction characters."""
    shown = "" if value is None else str(value)
    return printable(shown).translate(_ESCAPES)


def name(value: object) -> str:
    """Return a name from outside as HTML: cut, and isolated, so that its direction does not change other text."""
    shown = "" if value is None else str(value)
    return f"<bdi>{text(shown if len(shown) <= _MAX_NAME_CHARACTERS else shown[:_MAX_NAME_CHARACTERS] + '…')}</bdi>"


def mark(css_class: str, words: str) -> str:
    """Return text with a coloured mark. The text alone is sufficient without the colour."""
    return f'<span class="mark {css_class}">{text(words)}</span>'


def copy_button(command: str) -> str:
    """Return a button that copies a command to the clipboard; it is marked if the command ends programs."""
    kind, title = ("copy ends", "Copy. It ends programs") if _ENDS.search(command) else ("copy", "Copy")
    return f'<button type="button" class="{kind}" data-copy="{text(command)}" title="{title}">{text(command)}</button>'


def of_sizes(used: float | None, total: float | None = None) -> str:
    """Return `used / total` in GiB; an unknown total is omitted."""
    if used is None and total is None:
        return ABSENT
    figures = [ABSENT if amount is None else f"{amount / (1 << 30):.1f}" for amount in (used, total)]
    return f"{' / '.join(figures if total is not None else figures[:1])} GiB"


def of_watts(power: float | None, limit: float | None) -> str:
    """Return `power / limit` in watts, in kilowatts from 10 kW; an unknown limit is omitted."""
    if power is None and limit is None:
        return ABSENT
    large = max(power or 0, limit or 0) >= 1e4
    figures = [ABSENT if x is None else f"{x / 1000:.1f}" if large else f"{x:.0f}" for x in (power, limit)]
    return f"{' / '.join(figures if limit is not None else figures[:1])} {'kW' if large else 'W'}"


def bar(used: float | None, total: float | None) -> str:
    """Return a bar for the used share of a total. It is hidden from screen readers, which read the number beside it."""
    if used is None or not total:
        return ""
    width = 100 * min(1.0, max(0.0, used / total))
    return (
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="4"/><rect class="fill" width="{width:.1f}" height="4"/></svg>'
    )


def sparkline(history: Sequence[Sequence[float | None]]) -> str:
    """Return a step chart of the load over the last ten minutes from (seconds ago, share) points, with gaps."""
    known = [share for _, share in history if share is not None]
    label = "Busy over the last 10 minutes: not available yet"
    if known:
        mean = sum(known) / len(known)
        label = (
            f"Busy over the last 10 minutes: mean {percent(mean)}, from {percent(min(known))} to {percent(max(known))}"
        )
    steps = "".join(_steps(history))
    begin = min((_at(ago) for ago, _ in history), default=_SPARKLINE_SECONDS)
    # The ground of the time that was observed, and the base line of all ten minutes. Without data, a line would be a
    # load of 0.
    ground = f'<rect x="{begin}" width="{_SPARKLINE_SECONDS - begin}" height="{_SPARKLINE_HEIGHT}"/>'
    drawn = f'<path d="{steps}"/>' if steps else ""
    axis = f'<path class="axis" d="M0 {_SPARKLINE_HEIGHT - 1}H{_SPARKLINE_SECONDS}"/>'
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARKLINE_SECONDS} {_SPARKLINE_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{label}">{ground + drawn + axis if known else ""}</svg>'
    )


def _at(ago: float | None) -> int:
    return max(0, round(_SPARKLINE_SECONDS - (ago or 0.0)))


def _steps(history: Sequence[Sequence[float | None]]) -> Iterator[str]:
    """Yield the path: each interval without a gap is an area from the base line."""
    begin: int | None = None
    inside = False  # whether the previous step was known
    for ago, share in history:
        end = _at(ago)
        if share is not None and begin is not None:
            yield "" if inside else f"M{begin} {_SPARKLINE_HEIGHT}"
            yield f"V{_SPARKLINE_HEIGHT - round(_SPARKLINE_HEIGHT * share)}H{end}"
            inside = True
        elif inside:
            yield f"V{_SPARKLINE_HEIGHT}Z"
            inside = False
        begin = end
    if inside:
        yield f"V{_SPARKLINE_HEIGHT}Z"
