"""Grafana's part in a dashboard: the values of variables, interpolation, the steps of queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.backfill import Api
from tests.grafana.dashboard_reading import (
    Json,
    asked_of_prometheus,
    described,
    instant,
    panels,
    rate_interval,
    step_of,
    substituted,
    variables,
)

# The pixels of a dashboard as wide as a screen of 1920, and its columns.
_PIXELS, _COLUMNS = 1900, 24
Result = list[dict[str, Any]]


@dataclass(frozen=True)
class Shown:
    """What a panel shows: the results of its queries, or its text for no values."""

    title: str
    results: list[Result]
    empty_text: str

    @property
    def series(self) -> Result:
        return [series for result in self.results for series in result]

    def number(self, of: int = 0) -> float:
        """Return the value of a query of a stat."""
        (series,) = self.results[of]
        return float((series.get("value") or series["values"][-1])[1])

    def by(self, *labels: str, of: int = 0) -> dict[tuple[str, ...], float]:
        """Return the values of one query by labels."""
        return {
            tuple(series["metric"].get(label, "") for label in labels): float(series["value"][1])
            for series in self.results[of]
        }


@dataclass
class Grafana:
    """A user with a dashboard open. `chosen` are the values that the user chose, by variable."""

    api: Api
    dashboard: Json
    chosen: Mapping[str, str] = field(default_factory=dict)
    scrape: int = 15  # the interval in the settings of the data source; that of Prometheus may be another

    def options(self, variable: Json, known: Mapping[str, str]) -> list[str]:
        """Return the values of a variable, as Grafana extracts them from the result."""
        query, label = asked_of_prometheus(variable)
        query = substituted(query, {**known, "__range": f"{self.api.seconds}s"})
        if label:
            return self.api.label_values(query, label)
        pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
        matches = [pattern.search(described(answer)) for answer in self.api.now(query)]
        found = [match["value"] if "value" in pattern.groupindex else match[1] for match in matches if match]
        return list(dict.fromkeys(found))

    def values(self) -> dict[str, str]:
        """Return the values of all variables: those chosen, else All, else the first."""
        known: dict[str, str] = {}
        for variable in variables(self.dashboard):
            name = variable["name"]
            if name in self.chosen:
                known[name] = self.chosen[name]
            elif variable["includeAll"] and "allValue" in variable:
                known[name] = variable["allValue"]
            else:
                offered = self.options(variable, known)
                known[name] = f"({'|'.join(offered)})" if variable["multi"] else next(iter(offered), "")
        return known

    def shown(self) -> Iterator[Shown]:
        """Yield the panels, those of collapsed rows included. Fails if a query does."""
        values = self.values()
        for panel in panels(self.dashboard):
            points = panel.get("maxDataPoints") or _PIXELS * panel["gridPos"]["w"] // _COLUMNS
            results = [self._asked(target, points, values) for target in panel["targets"]]
            yield Shown(panel["title"], results, panel["fieldConfig"]["defaults"]["noValue"])

    def text(self, target: Json, points: int, values: Mapping[str, str]) -> tuple[str, int]:
        """Return the query as Grafana sends it, and its step."""
        step = step_of(self.api.seconds, points, target.get("interval"), self.scrape)
        interval = rate_interval(step, target.get("interval"), self.scrape)
        own = {"__range": f"{self.api.seconds}s", "__rate_interval": f"{interval}s"}
        return substituted(target["expr"], {**values, **own}), step

    def _asked(self, target: Json, points: int, values: Mapping[str, str]) -> Result:
        query, step = self.text(target, points, values)
        return self.api.now(query) if instant(target) else self.api.over_time(query, step)

    def panel(self, title: str) -> Shown:
        """Return one panel."""
        values = self.values()
        panel = next(panel for panel in panels(self.dashboard) if panel["title"] == title)
        results = [self._asked(target, 400, values) for target in panel["targets"]]
        return Shown(title, results, panel["fieldConfig"]["defaults"]["noValue"])
