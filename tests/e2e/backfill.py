"""A Prometheus with a past: series are written as blocks, and the rules are evaluated over them by its own engine."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.base.duration import parse_duration
from tests.e2e.programs import http, prometheus
from tests.needs import need

# A name with labels in braces, a value, and the time in seconds.
Sample = tuple[str, float, int]
STEP = 60


def written(folder: Path, samples: Iterable[Sample]) -> None:
    """Write samples, ascending in time for each series, into the database of the folder."""
    with (folder / "samples.txt").open("w") as out:
        out.writelines(f"{name} {value!r} {second}\n" for name, value, second in samples)
        out.write("# EOF\n")
    command = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(folder / "samples.txt")]
    subprocess.run([*command, str(folder / "tsdb")], check=True, capture_output=True)


def labelled(name: str, labels: Mapping[str, str]) -> str:
    """Return a name with its labels in braces."""
    text = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in labels.items() if value)
    return f"{name}{{{text}}}"


@dataclass(frozen=True)
class Api:
    """The API that Grafana uses, at the end of a time range."""

    url: str
    end: int
    seconds: int

    def _get(self, path: str, **parameters: object) -> Any:
        status, body = http(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}")
        answer = json.loads(body)
        assert status == 200, (parameters, answer)
        return answer["data"]

    def now(self, query: str) -> list[dict[str, Any]]:
        """Return the result of a query at the end of the time range."""
        found: list[dict[str, Any]] = self._get("query", query=query, time=self.end)["result"]
        return found

    def over_time(self, query: str, step: int) -> list[dict[str, Any]]:
        """Return the result of a query over the time range."""
        start = self.end - self.seconds
        found: list[dict[str, Any]] = self._get("query_range", query=query, start=start, end=self.end, step=step)[
            "result"
        ]
        return found

    def label_values(self, selector: str, label: str) -> list[str]:
        """Return the values of a label in the time range."""
        within = {"start": self.end - self.seconds, "end": self.end}
        return sorted(self._get(f"label/{label}/values", **{"match[]": selector}, **within))

    def samples(self, query: str, step: int) -> int:
        """Return the number of samples that a query over the time range loads."""
        start = self.end - self.seconds
        data = self._get("query_range", query=query, start=start, end=self.end, step=step, stats="all")
        return int(data["stats"]["samples"]["totalQueryableSamples"])


def levels(groups: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rules of all groups, those that read recorded series after those that record them."""
    left = [rule for group in groups["groups"] for rule in group["rules"]]
    while left:
        open_names = {rule["record"] for rule in left if "record" in rule}
        ready = [rule for rule in left if not open_names & set(re.findall(r"gpugauge:[\w:]+", rule["expr"]))]
        assert ready, open_names
        yield ready
        left = [rule for rule in left if rule not in ready]


def evaluate_rules(
    folder: Path, end: int, seconds: int, parameters: Parameters, groups: Mapping[str, Any] | None = None
) -> None:
    """Write what the rules record and the alerts that fire over the time range, a minute apart. `groups` are other
    rules, whose raw series have a sample each minute at least.
    """
    # A recorded series ends with its last sample, which says so only in a Prometheus that evaluates it live.
    lookback = f"{STEP - 1}s" if groups else "5m"
    for ready in levels(groups or rules.groups(parameters)):
        with prometheus(folder, options=[f"--query.lookback-delta={lookback}"]) as server:
            api = Api(server.url, end, seconds)
            samples = [sample for rule in ready for sample in _results(api, rule)]
        written(folder, samples)


def _results(api: Api, rule: Mapping[str, Any]) -> Iterator[Sample]:
    hold = int(parse_duration(rule["for"])) if "for" in rule else 0
    for series in api.over_time(rule["expr"], STEP):
        labels = {key: value for key, value in series["metric"].items() if key != "__name__"}
        if "record" in rule:
            name = labelled(rule["record"], {**labels, **rule.get("labels", {})})
            yield from ((name, float(value), int(second)) for second, value in series["values"])
            continue
        state = {**labels, "alertname": rule["alert"], **rule["labels"]}
        since = before = 0
        for second, _ in series["values"]:
            since = since if second == before + STEP else second
            before = second
            yield labelled("ALERTS_FOR_STATE", state), float(since), int(second)
            if second - since >= hold:
                yield labelled("ALERTS", {**state, "alertstate": "firing"}), 1.0, int(second)
