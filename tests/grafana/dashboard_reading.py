"""A reader of dashboards that follows Grafana: panels, queries, variables and their substitution."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

Json = dict[str, Any]
SCHEMA = Draft7Validator(json.loads((Path(__file__).parent / "schema" / "schema.json").read_text()))
# Grafana's own variables, where their values do not matter, and the default of the variable that a user types.
BUILT_IN = {"__range": "1h", "__rate_interval": "4m", "price": "1"}
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
    """Return all panels, those of collapsed rows included."""
    every = [each for panel in dashboard["panels"] for each in (panel, *panel.get("panels", ()))]
    return [panel for panel in every if panel["type"] != "row"]


def queries(dashboard: Json) -> Iterator[Asked]:
    """Yield the queries of all panels and annotations."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Asked(f"{dashboard['title']} / {panel['title']} / {target['refId']}", target["expr"])
    for annotation in dashboard["annotations"]["list"]:
        yield Asked(f"{dashboard['title']} / annotation {annotation['name']}", annotation["expr"])


def instant(target: Json) -> bool:
    """Return whether a query asks for the current values only."""
    return bool(target["instant"])


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
    every = {**BUILT_IN, **values}
    text = re.sub(r"\$(\w+)", lambda found: every.get(found[1], found[0]), text)
    left = re.findall(r"\$[a-z_]\w*", text)
    assert not left, f"{left} in {text}"
    return text


def rate_interval(step: int, interval: str | None, scrape: int = 15) -> int:
    """Return Grafana's $__rate_interval, seconds: for the step of a query, its own interval, which takes precedence,
    and the scrape interval in the settings of the data source, 15 seconds by default.
    """
    scrape = _seconds(interval) if interval else scrape
    return max(step + scrape, 4 * scrape)


def step_of(seconds: int, points: int, interval: str | None, scrape: int = 15) -> int:
    """Return the step of a query over a time range: as many points as pixels, rounded as Grafana rounds it."""
    shortest = _seconds(interval) if interval else scrape
    wanted = seconds / points
    rounded = next((step for limit, step in _ROUNDED if wanted < limit), 3600)
    return max(shortest, rounded)


# The smallest steps that Grafana's roundInterval does not reach, and what it rounds to, seconds.
_ROUNDED = (
    (1.5, 1),
    (3.5, 2),
    (7.5, 5),
    (12.5, 10),
    (17.5, 15),
    (25, 20),
    (45, 30),
    (90, 60),
    (210, 120),
    (450, 300),
    (750, 600),
    (1050, 900),
    (1500, 1200),
    (2700, 1800),
)


def _seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


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
