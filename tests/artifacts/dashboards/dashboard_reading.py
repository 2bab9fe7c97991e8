"""A reader of dashboards that follows Grafana: panels, queries, variables and their substitution."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
# Grafana's own variables, for a scrape every second. A step of five minutes is longer than a test.
BUILT_IN = {"$__range:5m": "1m:1s", "$__range": "1m", "$__rate_interval": "15s"}
_CALL = re.compile(r"(label_values|query_result)\((.*?)(?:, *(\w+))?\)", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# The parts of PromQL that are not metric names: functions, operators, and the labels after by, on and ignoring.
_GROUPING = re.compile(r"\b(?:by|on|ignoring|group_left|group_right|without)\s*\([^)]*\)")
_WORD = re.compile(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])")
_OPERATORS = {"and", "or", "unless", "bool", "offset", "by", "on", "ignoring", "group_left"}


@dataclass(frozen=True)
class Asked:
    """A query of a dashboard, and its place in it."""

    where: str
    text: str


def panels(dashboard: Json) -> list[Json]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: Json) -> Iterator[Asked]:
    """Yield the queries of all panels and annotations."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Asked(f"{dashboard['title']} / {panel['title']} / {target['refId']}", target["expr"])
    for annotation in dashboard["annotations"]["list"]:
        yield Asked(f"{dashboard['title']} / annotation {annotation['name']}", annotation["expr"])


def variables(dashboard: Json) -> list[Json]:
    """Return the variables that query Prometheus."""
    return [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def asked_of_prometheus(variable: Json) -> tuple[str, str]:
    """Return the selector or query of a variable, and the label whose values it takes, empty for whole series."""
    call = _CALL.fullmatch(variable["query"]["query"])
    assert call, variable
    return (
        (call[2], call[3]) if call[1] == "label_values" else (variable["query"]["query"][len("query_result(") : -1], "")
    )


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Return the query with the values in place of the variables. Fails if a variable is left."""
    for name, value in BUILT_IN.items():
        text = text.replace(name, value)
    text = re.sub(
        r"\$(\w+)", lambda found: values.get(found[1], found[0]) if not found[1].isdigit() else found[0], text
    )
    left = re.findall(r"\$[a-z_]\w*", text)
    assert not left, f"{left} in {text}"
    return text


def metric_names(query: str) -> set[str]:
    """Return the metrics in a query."""
    plain = _GROUPING.sub(" ", _STRING.sub('""', query))
    plain = re.sub(r"\{[^}]*\}", "{}", plain)
    plain = re.sub(r"\[[^\]]*\]", "[]", plain)
    return set(_WORD.findall(plain)) - _OPERATORS


def described(series: Json) -> str:
    """Return a series of a result in the form that Grafana gives to the regex of a variable."""
    labels = ",".join(f'{key}="{value}"' for key, value in sorted(series["metric"].items()))
    return f"{{{labels}}} {series['value'][1]} {int(series['value'][0] * 1000)}"
