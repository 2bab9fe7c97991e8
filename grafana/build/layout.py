"""The places of panels in a dashboard."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Panel:
    """A panel without its position. `width` is in 24ths of the dashboard, `height` in Grafana's grid units."""

    body: Json
    width: int
    height: int


@dataclass(frozen=True)
class Row:
    """A heading, if there is a title, and the panels below it. Those of a collapsed row query nothing until it is
    opened.
    """

    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)
    collapsed: bool = False


def place(rows: Sequence[Row]) -> list[Json]:
    """Return the panels with ids and positions: from left to right, in lines as high as their highest panel."""
    ids = itertools.count(1)
    placed: list[Json] = []
    y = 0

    def put(body: Json, x: int, y: int, w: int, h: int) -> Json:
        return {"id": next(ids), "gridPos": {"x": x, "y": y, "w": w, "h": h}, **body}

    for row in rows:
        below = placed
        if row.title:
            heading = put({"type": "row", "title": row.title, "collapsed": row.collapsed, "panels": []}, 0, y, 24, 1)
            placed.append(heading)
            below = heading["panels"] if row.collapsed else placed
            y += 1
        x, top, line = 0, y, 0
        for panel in row.panels:
            if x + panel.width > 24:
                x, top, line = 0, top + line, 0
            below.append(put(panel.body, x, top, panel.width, panel.height))
            x, line = x + panel.width, max(line, panel.height)
        y = y if row.collapsed else top + line
    return placed
