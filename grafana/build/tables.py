"""Grafana's tables as plain data: a line for each combination of labels, a column for each query or label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grafana.build.layout import Json, Panel
from grafana.build.panels import (
    EMPTY,
    PLAIN,
    Query,
    Steps,
    mapping,
    panel,
    target,
    thresholds,
)
from grafana.build.queries import Expr

_EMPTY_CELL = "-"


@dataclass(frozen=True)
class Column:
    """A column of a table, from a query or from a label. `steps` are thresholds that colour its text; `texts`
    replaces values by texts, `colors` are the colours of these. Links can use a hidden column, but not a dropped one.
    """

    title: str
    source: Expr | str
    steps: Steps = ()
    bar: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    colors: Mapping[str, str] = field(default_factory=dict)
    link: Json | None = None
    size: int = 0
    hidden: bool = False
    dropped: bool = False
    decimals: int | None = None


def dropped(*sources: Expr | str) -> list[Column]:
    """Return columns that are not shown."""
    return [Column("", source, dropped=True) for source in sources]


def table(
    title: str,
    description: str,
    *columns: Column,
    sort: str = "",
    ascending: bool = False,
    width: int = 24,
    height: int = 8,
    empty_text: str = EMPTY,
) -> Panel:
    """Return a table of current values. `empty_text` is shown in place of an empty table."""
    values = [column.source for column in columns if isinstance(column.source, Expr)]
    refs = {id(value): chr(ord("A") + number) for number, value in enumerate(values)}

    def name(column: Column) -> str:
        if isinstance(column.source, str):
            return column.source
        return f"Value #{refs[id(column.source)]}" if len(values) > 1 else "Value"

    targets = [{**target(refs[id(value)], Query(value, now=True)), "format": "table"} for value in values]
    organize = {
        "excludeByName": {
            "Time": True,
            "__name__": True,
            **{name(column): True for column in columns if column.dropped},
        },
        "indexByName": {name(column): place for place, column in enumerate(columns)},
        "renameByName": {name(column): column.title for column in columns if not column.dropped},
    }
    transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    options: Json = {
        "showHeader": True,
        "cellHeight": "sm",
        "frameIndex": 0,
        "sortBy": [{"displayName": sort, "desc": not ascending}] if sort else [],
    }
    defaults: Json = {
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
        "noValue": empty_text,
    }
    overrides = [_override(column) for column in columns if not column.dropped]
    body = panel("table", title, description, targets, options, defaults, overrides, width=width, height=height)
    return Panel({**body.body, "transformations": transformations}, width, height)


def _override(column: Column) -> Json:
    bar = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    colored = column.steps or column.colors
    properties = {
        "unit": column.source.unit if isinstance(column.source, Expr) else "",
        "custom.cellOptions": bar if column.bar else {"type": "color-text"} if colored else None,
        "min": 0 if column.bar else None,
        "max": 1 if column.bar else None,
        "color": {"mode": "thresholds"} if column.steps or column.bar else None,
        "thresholds": thresholds(column.steps or PLAIN) if column.steps or column.bar else None,
        "mappings": [mapping(column.texts, column.colors)] if column.texts else None,
        "links": [column.link] if column.link else None,
        "custom.width": column.size or None,
        "decimals": column.decimals,
        # The older form and that of Grafana 12.2 and newer.
        "custom.hidden": column.hidden or None,
        "custom.hideFrom": {"viz": True, "legend": False, "tooltip": False} if column.hidden else None,
        # The text of an empty table is not that of an empty cell.
        "noValue": _EMPTY_CELL,
    }
    chosen = [{"id": name, "value": value} for name, value in properties.items() if value not in (None, "")]
    return {"matcher": {"id": "byName", "options": column.title}, "properties": chosen}
