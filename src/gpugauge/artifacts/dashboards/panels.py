"""Grafana's panels as plain data. The unit of a panel is that of its queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gpugauge.artifacts.dashboards.queries import Expr

Json: TypeAlias = "dict[str, Any]"
Steps: TypeAlias = "Sequence[tuple[float | None, str]]"

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
# Pairs of a lower bound and a colour; None is minus infinity.
PLAIN: Steps = ((None, "blue"),)
LOAD: Steps = ((None, "red"), (0.5, "orange"), (0.8, "green"))
HOT: Steps = ((None, "green"), (80, "orange"), (90, "red"))
BAD: Steps = ((None, "green"), (1, "red"))
GOOD: Steps = ((None, "red"), (1, "green"))
# Panels wider than this, in 24ths of the dashboard, have their legend on the right, others below.
_MAX_WIDTH_OF_LEGEND_BELOW = 8


class MixedUnitsError(ValueError):
    """The queries of a panel have different units."""


@dataclass(frozen=True)
class Query:
    """An expression and the legend of its series."""

    expr: Expr
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A panel without its position. `width` is in 24ths of the dashboard, `height` in Grafana's grid units."""

    body: Json
    width: int
    height: int


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)


def place(rows: Sequence[Row]) -> list[Json]:
    """Return the panels with ids and positions: from left to right, in lines as high as their highest panel."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(
            _placed({"type": "row", "title": row.title, "collapsed": False, "panels": []}, placed, 0, y, 24, 1)
        )
        x, y, line = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > 24:
                x, y, line = 0, y + line, 0
            placed.append(_placed(panel.body, placed, x, y, panel.width, panel.height))
            x, line = x + panel.width, max(line, panel.height)
        y += line
    return placed


def _placed(body: Json, before: Sequence[Json], x: int, y: int, w: int, h: int) -> Json:
    return {"id": len(before) + 1, "gridPos": {"x": x, "y": y, "w": w, "h": h}, **body}


def timeseries(
    title: str,
    description: str,
    *queries: Query,
    width: int = 12,
    height: int = 8,
    stack: bool = False,
    bars: bool = False,
    steps: Steps = (),
    highest: float | None = None,
    colors: Mapping[str, str] | None = None,
) -> Panel:
    """Return a graph over time. `colors` maps series names to colours, so that a cause has one colour everywhere."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stack else 80 if bars else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stack else "none"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    options = {
        "legend": {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["mean", "lastNotNull"]}
        if width > _MAX_WIDTH_OF_LEGEND_BELOW
        else {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    defaults = {
        **_defaults(_unit(queries), steps or PLAIN),
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "min": 0,
        **({} if highest is None else {"max": highest}),
    }
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in (colors or {}).items()
    ]
    return panel(
        "timeseries", title, description, _ranges(queries), options, defaults, overrides, width=width, height=height
    )


def stat(
    title: str,
    description: str,
    *queries: Query,
    width: int = 4,
    steps: Steps = PLAIN,
    empty_text: str = "none",
    names: bool = False,
    sparkline: bool = False,
) -> Panel:
    """Return the current values in large type. `empty_text` is shown without series, `names` adds the legends."""
    options: Json = {
        "colorMode": "value",
        "graphMode": "area" if sparkline else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "value_and_name" if names else "value",
        "wideLayout": True,
    }
    defaults = {**_defaults(_unit(queries), steps), "color": {"mode": "thresholds"}, "noValue": empty_text}
    targets = _ranges(queries) if sparkline else _instants(queries)
    return panel("stat", title, description, targets, options, defaults, width=width, height=4)


def bars(
    title: str,
    description: str,
    *queries: Query,
    width: int = 8,
    height: int = 8,
    steps: Steps = PLAIN,
    decimals: int = 1,
) -> Panel:
    """Return one bar for the current value of each series."""
    options: Json = {
        "displayMode": "basic",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "maxVizHeight": 40,
        "minVizHeight": 12,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    unit = _unit(queries)
    defaults = {**_defaults(unit, steps), "color": {"mode": "thresholds"}, "min": 0, "decimals": decimals}
    return panel("bargauge", title, description, _instants(queries), options, defaults, width=width, height=height)


def _unit(queries: Sequence[Query]) -> str:
    units = {query.expr.unit for query in queries}
    if len(units) != 1:
        raise MixedUnitsError(f"one panel cannot have the units {', '.join(sorted(units))}")
    return units.pop()


def thresholds(steps: Steps) -> Json:
    """Return thresholds in Grafana's form."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def _defaults(unit: str, steps: Steps) -> Json:
    return {"unit": unit, "thresholds": thresholds(steps)}


def target(ref: str, query: Query) -> Json:
    """Return a query in Grafana's form; `ref` is its letter in the panel."""
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "expr": query.expr.text,
        "editorMode": "code",
        **({"legendFormat": query.legend} if query.legend else {}),
    }


def _ranges(queries: Sequence[Query]) -> list[Json]:
    return [{**target(chr(ord("A") + n), query), "instant": False, "range": True} for n, query in enumerate(queries)]


def _instants(queries: Sequence[Query]) -> list[Json]:
    return [{**target, "instant": True, "range": False} for target in _ranges(queries)]


def panel(
    kind: str,
    title: str,
    description: str,
    targets: list[Json],
    options: Json,
    defaults: Json,
    overrides: Sequence[Json] = (),
    *,
    width: int,
    height: int,
) -> Panel:
    """Return a panel of any kind, with the options of that kind."""
    body = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": targets,
        "options": options,
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
    }
    return Panel(body, width, height)
