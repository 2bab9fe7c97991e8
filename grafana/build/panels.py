"""Grafana's panels as plain data. The unit of a panel is that of its queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from grafana.build.layout import Json, Panel
from grafana.build.queries import CLUSTER, COUNT, SHARE, Expr
from grafana.build.words import CODES

Steps: TypeAlias = "Sequence[tuple[float | None, str]]"
# By value, or by a regular expression after ~: the text, "" for the value itself, and the colour, "" for none.
Names: TypeAlias = "Mapping[str, tuple[str, str]]"

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
# Pairs of a lower bound and a colour; None is minus infinity, and a value that is not known.
PLAIN: Steps = ((None, "text"),)
LOAD: Steps = ((None, "text"), (0, "orange"), (0.8, "green"))
HOT: Steps = ((None, "text"), (0, "green"), (80, "orange"), (90, "red"))
BAD, WARN = (((None, "text"), (0, "green"), (1, color)) for color in ("red", "orange"))
# Grafana derives $__rate_interval from the interval of a query: it becomes 4 minutes or more, which has data with every
# scrape interval up to a minute, whatever the settings of the data source say.
MIN_INTERVAL = "1m"
EMPTY = "no values in the time shown"
# The value of a series that is only a name in the legend: no number of these graphs, and not NaN, with which Grafana
# finds no axis.
ONLY_NAME = "-1"
# The upper end of the axis of values that are all smaller.
_SOFT_MAXIMUM = {COUNT: 1, SHARE: 0.1, "s": 0.1, "suffix:/s": 1}


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
    width: int = 6,
    height: int = 8,
    stack: bool = False,
    steps: Steps = (),
    highest: float | None = None,
    names: Names | None = None,
    lines: Sequence[str] = (),
    empty_text: str = EMPTY,
) -> Panel:
    """Return a graph over time, whose legend is a table, with lines at the steps above 0. `names` are texts and colours
    of series by their legends, so that a cause has one colour everywhere; `lines` are not stacked on the others. The
    legend is at the right, where it has more lines.
    """
    unit = _unit(queries)
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stack else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stack else "none"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
        **({"axisSoftMax": _SOFT_MAXIMUM[unit]} if unit in _SOFT_MAXIMUM else {}),
    }
    options = {
        "legend": {
            "displayMode": "table",
            "placement": "right",
            "showLegend": any(query.legend for query in queries),
            "calcs": ["lastNotNull", "mean", *([] if stack else ["max"])],
            # The largest part first: a legend may be cut.
            **({"sortBy": "Last *", "sortDesc": True} if stack else {}),
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    defaults = {
        **_defaults(unit, [step for step in steps if step[0] != 0] or PLAIN),
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "min": 0,
        **({} if highest is None else {"max": highest}),
        "noValue": empty_text,
        "mappings": mappings({ONLY_NAME: ("-", "")}),
    }
    overrides = [*_named(names or {}), *(_override(line, **_LINE) for line in lines)]
    return panel("timeseries", title, description, _targets(queries), options, defaults, overrides, width, height)


_LINE: Json = {"custom.stacking": {"group": "B", "mode": "none"}, "custom.fillOpacity": 0, "custom.lineWidth": 2}


def stat(
    title: str,
    description: str,
    *queries: Query,
    width: int = 4,
    height: int = 3,
    steps: Steps = PLAIN,
    empty_text: str = "no data",
    mode: str = "value",
    names: Names | None = None,
    units: Mapping[str, str] | None = None,
    colors: Mapping[str, Steps] | None = None,
    decimals: int | None = None,
) -> Panel:
    """Return the current values in large type. `mode` is Grafana's: value, name for words in a legend, or
    value_and_name. `units` and `colors` are those of queries whose unit or thresholds differ, by their legends.
    """
    options: Json = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": mode,
        # Several values beside each other would have tiny names.
        **({"text": {"titleSize": 13}} if mode == "value_and_name" else {}),
        "wideLayout": True,
    }
    own = units or {}
    defaults = {
        **_defaults(_unit([query for query in queries if query.legend not in own]), steps),
        "color": {"mode": "thresholds"},
        "noValue": empty_text,
        "mappings": mappings(CODES),
        **({} if decimals is None else {"decimals": decimals}),
    }
    overrides = [
        *_named(names or {}),
        *(_override(legend, unit=unit) for legend, unit in own.items()),
        *(_override(legend, thresholds=thresholds(of)) for legend, of in (colors or {}).items()),
    ]
    return panel("stat", title, description, _targets(_now(queries)), options, defaults, overrides, width, height)


def bars(
    title: str,
    description: str,
    *queries: Query,
    width: int = 8,
    height: int = 8,
    names: Names | None = None,
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
    defaults = {
        **_defaults(_unit(queries), ((None, "blue"),)),
        "color": {"mode": "thresholds"},
        "min": 0,
        "decimals": 1,
        "noValue": empty_text,
        "mappings": mappings(CODES),
    }
    own = _named(names or {})
    return panel("bargauge", title, description, _targets(_now(queries)), options, defaults, own, width, height)


@dataclass(frozen=True)
class Column:
    """A column of a table, from a query or from a label. `steps` are thresholds that colour its text, `names` replace
    and colour values, the whole cell if it is `filled`. Links can use a hidden column, but not a dropped one.
    """

    title: str
    source: Expr | str
    steps: Steps = ()
    filled: bool = False
    names: Names = field(default_factory=dict)
    link: Json | None = None
    size: int = 0
    hidden: bool = False
    dropped: bool = False
    decimals: int | None = None
    empty: str = "-"


# The label with the value of the variable `cluster` that selects a line's cluster, also where there is no such label.
CLUSTER_CHOICE = "cluster_choice"
# Of each table.
_CLUSTERS = Column("Cluster", CLUSTER, size=80), Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True)


def dropped(*sources: Expr | str) -> list[Column]:
    """Return columns that are not shown."""
    return [Column("", source, dropped=True) for source in sources]


def table(
    title: str,
    description: str,
    *columns: Column,
    sort: str = "",
    ascending: bool = False,
    order: Sequence[str] = (),
    most: int = 0,
    width: int = 24,
    height: int = 8,
    cells: str = "sm",
    header: bool = True,
    empty_text: str = EMPTY,
) -> Panel:
    """Return a table of current values: a line for each combination of labels, whose texts are wrapped. `cells` is the
    height of a line, lg for texts that stand in place of values: Grafana counts the lines of the values. `empty_text`
    is shown in place of an empty table. `order` are titles of columns: the order of the last counts most, values from
    the highest on. `most` is the number of lines that are shown.
    """
    columns += _CLUSTERS
    values = [column.source for column in columns if isinstance(column.source, Expr)]
    refs = {id(value): chr(ord("A") + number) for number, value in enumerate(values)}

    def name(column: Column) -> str:
        if isinstance(column.source, str):
            return column.source
        return f"Value #{refs[id(column.source)]}" if len(values) > 1 else "Value"

    targets = [{**target(refs[id(value)], Query(value, now=True)), "format": "table"} for value in values]
    hidden = {name(column): True for column in columns if column.dropped}
    ordered = [next(column for column in columns if column.title == title) for title in order]
    orders = {_ORDER + name(column): True for column in ordered if isinstance(column.source, Expr)}
    organize = {
        "excludeByName": {"Time": True, "__name__": True, **hidden, **orders},
        "indexByName": {name(column): place for place, column in enumerate(columns)},
        "renameByName": {name(column): column.title for column in columns if not column.dropped},
    }
    options: Json = {
        "showHeader": header,
        "cellHeight": cells,
        "frameIndex": 0,
        "sortBy": [{"displayName": sort, "desc": not ascending}] if sort else [],
    }
    wrapped = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "wrapText": True}
    defaults: Json = {"custom": wrapped, "noValue": empty_text}
    overrides = [_column(column) for column in columns if not column.dropped]
    made = panel("table", title, description, targets, options, defaults, overrides, width, height)
    transformations = [
        {"id": "merge", "options": {}},
        *(each for column in ordered for each in _sorted(name(column), by_value=isinstance(column.source, Expr))),
        *([{"id": "limit", "options": {"limitField": most}}] if most else []),
        {"id": "organize", "options": organize},
    ]
    return Panel({**made.body, "transformations": transformations}, width, height)


_ORDER = "order of "


def _sorted(field: str, *, by_value: bool) -> Iterator[Json]:
    """Yield what sorts lines by a field, values from the highest on: one that is missing, which Grafana would compare
    as equal to all others, counts as 0.
    """
    by = _ORDER + field if by_value else field
    if by_value:
        sum_ = {"reducer": "sum", "include": [field]}
        yield {
            "id": "calculateField",
            "options": {"mode": "reduceRow", "reduce": sum_, "alias": by, "timeSeries": False},
        }
    yield {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": by, "desc": by_value}]}}


def _column(column: Column) -> Json:
    kind = "color-background" if column.filled else "color-text"
    colored = column.steps or any(color for _, color in column.names.values())
    return _override(
        column.title,
        unit=column.source.unit if isinstance(column.source, Expr) else None,
        **{
            "custom.cellOptions": {"type": kind} if colored else None,
            "color": {"mode": "thresholds"} if column.steps else None,
            "thresholds": thresholds(column.steps) if column.steps else None,
            "mappings": mappings(column.names) if column.names else None,
            "links": [column.link] if column.link else None,
            "custom.width": column.size or None,
            "decimals": column.decimals,
            # The older form and that of Grafana 12.2 and newer.
            "custom.hidden": column.hidden or None,
            "custom.hideFrom": {"viz": True, "legend": False, "tooltip": False} if column.hidden else None,
            # The text of an empty table is not that of an empty cell.
            "noValue": column.empty,
        },
    )


def _override(name: str, **properties: object) -> Json:
    chosen = [{"id": each, "value": value} for each, value in properties.items() if value not in (None, "")]
    return {"matcher": {"id": "byName", "options": name}, "properties": chosen}


def _named(names: Names) -> list[Json]:
    """Return the overrides for the texts and colours of series."""
    return [
        _override(name, color={"mode": "fixed", "fixedColor": color} if color else None, displayName=text)
        for name, (text, color) in names.items()
    ]


def _unit(queries: Sequence[Query]) -> str:
    # The reason for missing values has no unit.
    units = {query.expr.unit for query in queries if query.expr.unit}
    if len(units) != 1:
        raise MixedUnitsError(f"one panel cannot have the units {', '.join(sorted(units))}")
    return units.pop()


def thresholds(steps: Steps) -> Json:
    """Return thresholds in Grafana's form."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def mappings(names: Names) -> list[Json]:
    """Return the mappings of values to texts and colours in Grafana's form. The first that matches is taken."""
    results = {
        value: {**({"text": text} if text else {}), **({"color": color} if color else {}), "index": number}
        for number, (value, (text, color)) in enumerate(names.items())
    }
    plain = {value: result for value, result in results.items() if not value.startswith("~")}
    return [
        *([{"type": "value", "options": plain}] if plain else []),
        *(
            {"type": "regex", "options": {"pattern": f"^(?:{value[1:]})$", "result": result}}
            for value, result in results.items()
            if value not in plain
        ),
    ]


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
    overrides: Sequence[Json],
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
