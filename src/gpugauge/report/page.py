"""A report as one HTML file that needs no other one, with its curves, for a browser and for paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpugauge.report.model import Curves
from gpugauge.report.render import Block, when
from gpugauge.status.words import cause_phrase, quantity
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.draw import text

_HEIGHT = 100
_CODE = re.compile(r"`([^`]+)`|[a-z][\w.]+\([^)]*\)|\b\w+=\w+|\bsbatch --[^)]+|\bgpugauge \w+(?=\.$)")
_Layers = Sequence[tuple[str, str, Sequence[float | None]]]  # the name, the colour and the values of each


def as_html(found: Sequence[Block], now: float, curves: Curves | None = None) -> str:
    """Return blocks as an HTML document; the curves are last."""
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(found[0].heading)}</title><style>{css}</style></head>\n<body><main>\n"
        + "\n".join([*map(_block, found, range(len(found))), _charts(curves) if curves else ""])
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
    return _CODE.sub(lambda found: f"<code>{found[1] or found[0]}</code>", text(line))


def _row(row: Sequence[str], tag: str, block: Block) -> str:
    cells = (f"<{tag}{' class=n' * (at in block.numbers)}>{text(cell)}</{tag}>" for at, cell in enumerate(row))
    return f"<tr>{''.join(cells)}</tr>"


def _charts(curves: Curves) -> str:
    lost = sorted(curves.lost_gpus.items(), key=lambda pair: -sum(pair[1]))
    used = [max(0.0, held - sum(values[at] for _, values in lost)) for at, held in enumerate(curves.held_gpus)]
    layers = [("used", "var(--used)", used)] * (sum(used) > 0) + [
        (cause_phrase(cause), _colour(cause), of) for cause, of in lost if sum(of) >= 0.005 * sum(curves.held_gpus)
    ]
    gib = [None if value is None else value / (1 << 30) for value in curves.memory_bytes]
    figures = [_figure("GPUs held", "", curves, layers)] if sum(curves.held_gpus) else []
    size = (curves.memory_size_bytes or 0.0) / (1 << 30)
    for caption, unit, values, all_of in (
        ("Memory", "GiB", gib, size),
        ("Power", "W", curves.watts, curves.watts_limit or 0.0),
    ):
        if any(value is not None for value in values):
            figures.append(_figure(f"{caption} of the GPUs", unit, curves, [("", "var(--blue)", values)], all_of))
    return "<h2>Over time</h2>" + "".join(figures) if figures else ""


def _colour(cause: str) -> str:
    name = CAUSES.get(cause, CAUSES["unknown"]).colour  # the style sheet has Grafana's names of colours
    return name if name.startswith("#") else f"var(--{name})"


def _figure(caption: str, unit: str, curves: Curves, layers: _Layers, all_of: float = 0.0) -> str:
    """Return a chart of steps, as high as `all_of`; gaps between its layers show them on paper without colours."""
    count = len(curves.held_gpus)
    ground, drawn = [0.0] * count, []
    most = max(sum(values[at] or 0.0 for _, _, values in layers) for at in range(count)) or 1.0
    scale = _HEIGHT / max(most, all_of or most / 0.95)
    for _, colour, values in layers:
        path = "".join(
            f"M{10 * at} {_HEIGHT - scale * ground[at]:.1f}v{1 - scale * value:.1f}h10v{scale * value - 1:.1f}Z"
            for at, value in enumerate(values)
            if value and scale * value > 1
        )
        ground = [below + (value or 0.0) for below, value in zip(ground, values, strict=True)]
        drawn.append(f'<path style="fill:{colour}" d="{path}"/>')
    key = "".join(f'<span><i style="background:{colour}"></i>{text(name)}</span>' for name, colour, _ in layers if name)
    largest = f"at most {quantity(most)} {f'of {quantity(all_of)} ' if all_of else ''}{unit}".strip()
    end = when(curves.begin + count * curves.interval_seconds)
    return (
        f"<figure><figcaption><b>{caption}</b><span>{largest}</span>{key}</figcaption>"
        f'<svg viewBox="0 0 {10 * count} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{caption}, {largest}" shape-rendering="crispEdges">{"".join(drawn)}</svg>'
        f'<div class="axis"><span>{when(curves.begin)}</span><span>{end}</span></div></figure>'
    )
