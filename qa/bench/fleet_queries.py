"""The queries of our dashboards, with the variables at their defaults; a job and a node are chosen where needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qa.bench.fleet_prometheus import RULES

_FOLDER = Path(__file__).parents[2] / "grafana"
DASHBOARDS = ("fleet", "job", "node", "exporter")
_RECORDED = re.compile(r"\b(gpugauge:[\w:]+)(\{[^}]*\})?")


@dataclass(frozen=True)
class Query:
    """A query of a panel."""

    panel: str
    expr: str
    instant: bool


def queries(dashboard: str, variables: Mapping[str, str]) -> list[Query]:
    """Return the queries that a dashboard sends when it is opened; a variable without a value is All."""
    tree = json.loads((_FOLDER / f"{dashboard}.json").read_text())

    def value(name: re.Match[str]) -> str:
        return variables.get(name[1], ".*")

    return [
        Query(panel.get("title", ""), re.sub(r"\$(\w+)", value, target["expr"]), bool(target.get("instant")))
        for panel in _panels(tree["panels"])
        for target in panel.get("targets", [])
    ]


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def without_recordings(expr: str) -> str:
    """Return the query with the expressions of the recorded series in place of their names.

    The matchers of recorded series are dropped, which is right only if they match all series.
    """
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    while _RECORDED.search(expr):
        expr = _RECORDED.sub(lambda found: f"({recorded[found[1]]})", expr)
    return expr
