"""Grafana's tables as plain data: a line for each combination of labels, a column for each query or label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpugauge.artifacts.dashboards.panels import PLAIN, Json, Panel, Query, Steps, panel, target, thresholds
from gpugauge.artifacts.dashboards.queries import Expr


@dataclass(frozen=True)
class Column:
    """A column of a table, from a query or from a label. `steps` are thresholds that colour its text; `texts`
    replaces values by texts.
    """

    title: str
    source: Expr | str
    steps: Steps = ()
    bar: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    link: Json | None = None
    size: int = 0
    hidden: bool = False


def table(
    title: str,
    description: str,
    *columns: Column,
    sort: str = "",
    ascending: bool = False,
    width: int = 24,
    height: int = 8,
    empty_text: str = "",
) -> Panel:
    """Return a table of current values. `empty_text` is shown in empty cells and in an empty table."""
    values = [column.source for column in columns if isinstance(column.source, Expr)]
    refs = {id(value): chr(ord("A") + number) for number, value in enumerate(values)}

    def name(column: Column) -> str:
        if isinstance(column.source, str):
            return column.source
        return f"Value #{refs[id(column.source)]}" if len(values) > 1 else "Value"

    targets = [
        {**target(refs[id(value)], Query(value)), "format": "table", "instant": True, "range": False}
        for value in values
    ]
    organize = {
        "excludeByName": {
            "Time": True,
            "__name__": True,
            **{name(column): True for column in columns if column.hidden},
        },
        "indexByName": {name(column): place for place, column in enumerate(columns)},
        "renameByName": {name(column): column.title for column in columns if not column.hidden},
    }
    transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    options: Json = {
        "showHeader": True,
        "cellHeight": "sm",
        "frameIndex": 0,
        "sortBy": [{"displayName": sort, "desc": not ascending}] if sort else [],
    }
    defaults: Json = {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}}
    if empty_text:
        defaults["noValue"] = empty_text
    overrides = [found for found in map(_override, columns) if found["properties"]]
    body = panel("table", title, description, targets, options, defaults, overrides, width=width, height=height)
    return Panel({**body.body, "transformations": transformations}, width, height)


def _override(column: Column) -> Json:
    properties: list[Json] = []

    def add(name: str, value: object) -> None:
        properties.append({"id": name, "value": value})

    if isinstance(column.source, Expr):
        add("unit", column.source.unit)
    if column.bar:
        add("custom.cellOptions", {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"})
        add("min", 0)
        add("max", 1)
    elif column.steps:
        add("custom.cellOptions", {"type": "color-text"})
    if column.steps or column.bar:
        add("color", {"mode": "thresholds"})
        add("thresholds", thresholds(column.steps or PLAIN))
    if column.texts:
        texts = {key: {"text": text, "index": number} for number, (key, text) in enumerate(column.texts.items())}
        add("mappings", [{"type": "value", "options": texts}])
    if column.link:
        add("links", [column.link])
    if column.size:
        add("custom.width", column.size)
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}
