"""A report as one HTML file that needs no other one, with its curves, for a browser and for paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpugauge.report.model import Curves
from gpugauge.report.render import Block, when
from gpugauge.status.words import quantity
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.draw import text

_HEIGHT = 150
_USED = "#73bf69"


def as_html(found: Sequence[Block], now: float, curves: Curves | None = None) -> str:
    """Return blocks as an HTML document; curves stand after the first three of them."""
    parts = [_block(block, at) for at, block in enumerate(found)]
    if curves is not None:
        parts.insert(min(3, len(parts)), _charts(curves))
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(found[0].heading)}</title><style>{css}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + f"\n</main><footer>Written by gpugauge report, {when(now)}.</footer></body></html>\n"
    )


def _block(block: Block, at: int) -> str:
    level = "h1" if at == 0 else "h2"
    heading = f"<{level}>{text(block.heading)}</{level}>" if block.heading else ""
    if block.heading == "What could not be known":
        return f"{heading}<ul>{''.join(f'<li>{_line(line)}</li>' for line in block.lines)}</ul>"
    answer = ' class="answer"' if at and not block.heading else ""
    body = "".join(f"<p{answer}>{_line(line)}</p>" for line in block.lines)
    if block.table:
        head, *rows = block.table
        shown = f"<thead>{_row(head, 'th', block)}</thead>" if any(head) else ""
        cells = "".join(_row(row, "td", block) for row in rows)
        body += f'<div class="scroll" tabindex="0"><table>{shown}<tbody>{cells}</tbody></table></div>'
    return f'<section class="first">{heading}{body}</section>' if block.heading == "Change first" else heading + body


def _line(line: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", text(line))


def _row(row: Sequence[str], tag: str, block: Block) -> str:
    cells = (f"<{tag}{' class=n' * (at in block.numbers)}>{text(cell)}</{tag}>" for at, cell in enumerate(row))
    return f"<tr>{''.join(cells)}</tr>"


def _charts(curves: Curves) -> str:
    lost = sorted(curves.lost_gpus.items(), key=lambda pair: -sum(pair[1]))
    used = [max(0.0, held - sum(values[at] for _, values in lost)) for at, held in enumerate(curves.held_gpus)]
    layers = [("used", _USED, used)] + [
        (cause, _colour(cause), list(values)) for cause, values in lost if sum(values) >= 0.005 * sum(curves.held_gpus)
    ]
    memory = [None if value is None else value / (1 << 30) for value in curves.memory_bytes]
    figures = [_figure("GPUs held", "", curves, layers)] if sum(curves.held_gpus) else []
    for caption, unit, values in (("Memory of all GPUs", "GiB", memory), ("Power of the GPUs", "W", curves.watts)):
        if any(value is not None for value in values):
            figures.append(_figure(caption, unit, curves, [("", "#5794f2", values)]))
    return "<h2>Over time</h2>" + "".join(figures) if figures else ""


def _colour(cause: str) -> str:
    """Return the colour of a cause; the style sheet has Grafana's names of colours."""
    name = CAUSES.get(cause, CAUSES["unknown"]).colour
    return name if name.startswith("#") else f"var(--{name})"


def _figure(caption: str, unit: str, curves: Curves, layers: Sequence[tuple[str, str, Sequence[float | None]]]) -> str:
    """Return a chart of steps, its layers one on the other."""
    count = len(curves.held_gpus)
    ground, drawn = [0.0] * count, []
    most = max(sum(values[at] or 0.0 for _, _, values in layers) for at in range(count)) or 1.0
    end = curves.begin + count * curves.interval_seconds
    for _, colour, values in layers:
        path = "".join(
            f"M{10 * at} {_y(ground[at], most)}V{_y(ground[at] + value, most)}h10V{_y(ground[at], most)}Z"
            for at, value in enumerate(values)
            if value
        )
        ground = [below + (value or 0.0) for below, value in zip(ground, values, strict=True)]
        drawn.append(f'<path style="fill:{colour}" d="{path}"/>')
    key = "".join(f'<span><i style="background:{colour}"></i>{text(name)}</span>' for name, colour, _ in layers if name)
    largest = f"at most {quantity(most)} {unit}".strip()
    label = text(f"{caption} over time, {largest}")
    return (
        f"<figure><figcaption><b>{text(caption)}</b><span>{largest}</span>{key}</figcaption>"
        f'<svg viewBox="0 0 {10 * count} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}" '
        f'shape-rendering="crispEdges">{"".join(drawn)}</svg>'
        f'<div class="axis"><span>{when(curves.begin)}</span><span>{when(end)}</span></div></figure>'
    )


def _y(value: float, most: float) -> str:
    return f"{_HEIGHT * (1 - 0.95 * value / most):.1f}"
