"""Grafana's panels as plain data. The unit of a panel is that of its queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from grafana.build import missing
from grafana.build.layout import Json, Panel
from grafana.build.queries import Expr

Steps: TypeAlias = "Sequence[tuple[float | None, str]]"

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
# Pairs of a lower bound and a colour; None is minus infinity.
PLAIN: Steps = ((None, "blue"),)
LOAD: Steps = ((None, "red"), (0.5, "orange"), (0.8, "green"))
HOT: Steps = ((None, "green"), (80, "orange"), (90, "red"))
BAD: Steps = ((None, "green"), (1, "red"))
GOOD: Steps = ((None, "red"), (1, "green"))
# Grafana derives $__rate_interval from the interval of a query: it becomes 4 minutes or more, which has data with every
# scrape interval up to a minute, whatever the settings of the data source say.
MIN_INTERVAL = "1m"
EMPTY = "no values in the time shown"


class MixedUnitsError(ValueError):
    """The queries of a panel have different units."""


@dataclass(frozen=True)
class Query:
    """An expression and the legend of its series. `now` asks for the current values only, also in a graph."""

    expr: Expr
    legend: str = ""
    now: bool = False


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
    legend: bool = True,
    empty_text: str = EMPTY,
) -> Panel:
    """Return a graph over time. `colors` maps series names to colours, so that a cause has one colour everywhere.
    Without a legend, the tooltip names the series.
    """
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
        "legend": {
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": legend and any(query.legend for query in queries),
            "calcs": [],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    defaults = {
        **_defaults(_unit(queries), steps or PLAIN),
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "min": 0,
        **({} if highest is None else {"max": highest}),
        "noValue": empty_text,
    }
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in (colors or {}).items()
    ]
    return panel(
        "timeseries", title, description, _targets(queries), options, defaults, overrides, width=width, height=height
    )


def status_history(
    title: str,
    description: str,
    query: Query,
    *,
    steps: Steps,
    width: int = 24,
    height: int = 10,
    empty_text: str = EMPTY,
) -> Panel:
    """Return a line of coloured cells over time for each series."""
    options: Json = {
        "showValue": "never",
        "rowHeight": 0.9,
        "colWidth": 1,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom = {"lineWidth": 0, "fillOpacity": 90}
    defaults = {
        **_defaults(query.expr.unit, steps),
        "color": {"mode": "thresholds"},
        "custom": custom,
        "noValue": empty_text,
    }
    # Each cell is at least a few pixels wide.
    return panel(
        "status-history",
        title,
        description,
        _targets([query]),
        options,
        defaults,
        width=width,
        height=height,
        max_points=150,
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
    texts: Mapping[str, str] | None = None,
    decimals: int | None = None,
) -> Panel:
    """Return the current values in large type. `empty_text` is shown without series, `names` adds the legends, `texts`
    replaces values, in addition to the keys of missing.TEXTS.
    """
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
    defaults = {
        **_defaults(_unit(queries), steps),
        "color": {"mode": "thresholds"},
        "noValue": empty_text,
        "mappings": [mapping({**missing.TEXTS, **(texts or {})}, dict.fromkeys(missing.TEXTS, "orange"))],
        **({} if decimals is None else {"decimals": decimals}),
    }
    targets = _targets(queries if sparkline else _now(queries))
    return panel("stat", title, description, targets, options, defaults, width=width, height=4)


def bars(
    title: str,
    description: str,
    *queries: Query,
    width: int = 8,
    height: int = 8,
    steps: Steps = PLAIN,
    decimals: int = 1,
    empty_text: str = EMPTY,
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
    defaults = {
        **_defaults(unit, steps),
        "color": {"mode": "thresholds"},
        "min": 0,
        "decimals": decimals,
        "noValue": empty_text,
    }
    targets = _targets(_now(queries))
    return panel("bargauge", title, description, targets, options, defaults, width=width, height=height)


def _unit(queries: Sequence[Query]) -> str:
    # The reason for missing values has no unit.
    units = {query.expr.unit for query in queries if query.expr.unit}
    if len(units) != 1:
        raise MixedUnitsError(f"one panel cannot have the units {', '.join(sorted(units))}")
    return units.pop()


def thresholds(steps: Steps) -> Json:
    """Return thresholds in Grafana's form."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def mapping(texts: Mapping[str, str], colors: Mapping[str, str] | None = None) -> Json:
    """Return the mapping of values to texts and colours in Grafana's form."""
    known = colors or {}
    options = {
        value: {"text": text, **({"color": known[value]} if value in known else {}), "index": number}
        for number, (value, text) in enumerate(texts.items())
    }
    return {"type": "value", "options": options}


def _defaults(unit: str, steps: Steps) -> Json:
    return {"unit": unit, "thresholds": thresholds(steps)}


def target(ref: str, query: Query) -> Json:
    """Return a query in Grafana's form; `ref` is its letter in the panel."""
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "expr": query.expr.text,
        "editorMode": "code",
        "interval": MIN_INTERVAL,
        "instant": query.now,
        "range": not query.now,
        **({"legendFormat": query.legend} if query.legend else {}),
    }


def _targets(queries: Sequence[Query]) -> list[Json]:
    return [target(chr(ord("A") + n), query) for n, query in enumerate(queries)]


def _now(queries: Sequence[Query]) -> list[Query]:
    return [replace(query, now=True) for query in queries]


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
    max_points: int | None = None,
) -> Panel:
    """Return a panel of any kind, with the options of that kind."""
    body = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        **({} if max_points is None else {"maxDataPoints": max_points}),
        "targets": targets,
        "options": options,
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
    }
    return Panel(body, width, height)
