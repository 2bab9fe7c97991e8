"""The queries of the first screens of our dashboards, with the variables at their defaults, or a job and a node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "grafana"
DASHBOARDS = ("fleet", "job", "node", "exporter")
_SCREEN = 21  # of Grafana's units of height


@dataclass(frozen=True)
class Query:
    """A query of a panel."""

    panel: str
    expr: str
    instant: bool


def filled(expr: str, variables: Mapping[str, str]) -> str:
    """Return an expression with the values of variables; a variable without one is All."""
    return re.sub(r"\$([a-zA-Z_]\w*)", lambda name: variables.get(name[1], ".*"), expr)


def queries(dashboard: str, variables: Mapping[str, str]) -> list[Query]:
    """Return the queries of a dashboard on a screen of 1440 by 900; a variable without a value is All."""
    tree = json.loads((_FOLDER / f"{dashboard}.json").read_text())
    return [
        Query(panel["title"], filled(target["expr"], variables), bool(target.get("instant")))
        for panel in tree["panels"]
        if panel["gridPos"]["y"] < _SCREEN
        for target in panel.get("targets", [])
    ]
