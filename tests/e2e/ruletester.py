"""Prometheus' rule tester, `promtool test rules`, on many cases side by side.

Each case is a cluster of its own in one Prometheus with the rules, so that promtool evaluates them once for all.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from qa.bench.alerts.replay import dump

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.artifacts.rules.rule_stories import DEFAULT, Row, Story
from tests.drawn import EVERYTHING
from tests.e2e.backfill import labelled
from tests.e2e.programs import prometheus3
from tests.needs import need

Phases = Sequence[tuple[str, int]]
# A name, its labels, and its values in promtool's notation, one a minute.
Series = tuple[str, Mapping[str, str], str]
# Of a test: its cases are evaluated side by side, on a machine with other work.
SECONDS = 600
CLOCK = "gpugauge_snapshot_timestamp_seconds"
# The cluster of the case, in what is expected.
HERE = "<the case>"
BEGIN = "<the begin>"


@functools.cache
def promtools() -> tuple[str, str]:
    """Return promtool of the machine (Debian's 2.42 or newer), and that of Prometheus 3."""
    return need("promtool"), prometheus3("promtool")


@functools.cache
def _pack(*parameters: str) -> tuple[tuple[str, ...], str]:
    """Return the names of the groups of sets of rules, given as JSON, and their text; they are built once."""
    groups = [group for each in parameters for group in rules.groups(Parameters.model_validate_json(each))["groups"]]
    return tuple(group["name"] for group in groups), dump({"groups": groups})


def story_identity(story: Story) -> dict[str, str]:
    """Return the labels of the story's alert, except its name."""
    return {"severity": story.severity, **story.identity}


def firing(alert: str, minute: int, minutes: int, count: int | None, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an expectation: the alert fires at `count` evaluations in the `minutes` before `minute`; None is never.

    The range is half a minute shorter, because it includes its begin in Prometheus 2 but not in Prometheus 3.
    """
    name = f'alertname="{alert}",' if alert else ""
    expected = {"alertname": alert, "alertstate": "firing", "cluster": HERE, **labels}
    text = ",".join(f'{key}="{value}"' for key, value in sorted(expected.items()))
    selector = f'ALERTS{{{name}alertstate="firing",cluster="{expected["cluster"]}"}}'
    return {
        "expr": f"count_over_time({selector}[{minutes * 60 - 30}s])",
        "eval_time": f"{minute}m",
        "exp_samples": [] if count is None else [{"labels": f"{{{text}}}", "value": count}],
    }


def annotated(
    story: Story, annotations: Mapping[str, str], minute: int = 60, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the expectation that the story's alert has these texts.

    Of the cases beside it, all with this alert at this minute have such an expectation.
    """
    expected = {"cluster": HERE, **story_identity(story), **(labels or {})}
    alert = {"exp_labels": expected, "exp_annotations": dict(annotations)}
    return {"eval_time": f"{minute}m", "alertname": story.alert, "exp_alerts": [alert]}


def of_rows(rows: Iterable[Row], phases: Phases) -> list[Series]:
    """Return the rows over the phases, as a node's. Exporters without a row of their clock have the right time."""
    found = [(row.name, {"instance": "node-1", **row.labels}, row.values([*phases])) for row in rows]
    nodes = {(labels["instance"], labels.get("cluster")) for _, labels, _ in found}
    return [*found, *([] if any(name == CLOCK for name, _, _ in found) else clocks(nodes))]


def clocks(nodes: Iterable[tuple[str, str | None]]) -> list[Series]:
    """Return the clocks of exporters, by instance and cluster."""
    known = [{"instance": instance, **({"cluster": cluster} if cluster else {})} for instance, cluster in nodes]
    return [(CLOCK, labels, "0+60x300") for labels in known]


@dataclass(frozen=True)
class Case:
    """Series, and what the rules make of them. `beside` are the parameters of a second set of rules."""

    name: str
    series: Sequence[Series]
    expected: Sequence[dict[str, Any]]
    parameters: Parameters = DEFAULT
    beside: Parameters | None = None
    tree: Mapping[str, Any] | None = None  # rules in place of those of the parameters
    clustered: bool = True  # False for one without others of the same rules
    begins: tuple[str, str] = ("", "")  # of its alert, in the place of BEGIN, with each version of promtool
    version: int = 0

    @property
    def rules(self) -> tuple[tuple[str, ...], str]:
        """The names of its groups of rules, and their text."""
        if self.tree:
            return tuple(group["name"] for group in self.tree["groups"]), dump(self.tree)
        return _pack(*(each.model_dump_json() for each in (self.parameters, self.beside) if each))

    @property
    def input_series(self) -> list[dict[str, str]]:
        """Its series as promtool reads them; those that name no cluster are in that of the case."""
        own = {"cluster": self.name} if self.clustered else {}
        return [{"series": labelled(name, {**own, **labels}), "values": values} for name, labels, values in self.series]

    @property
    def expectations(self) -> list[dict[str, Any]]:
        """What is expected, with its cluster."""
        text = json.dumps([*self.expected]).replace(HERE, self.name).replace(BEGIN, self.begins[self.version])
        found: list[dict[str, Any]] = json.loads(text)
        for alert in (alert for each in found if not self.clustered for alert in each["exp_alerts"]):
            del alert["exp_labels"]["cluster"]
        return found


def check(folder: Path, cases: Sequence[Case], *, each_version: bool = False) -> None:
    """Run all cases, each with one of the two versions of promtool, or with both. Fails with the names of those that
    fail.
    """
    assert len({case.name for case in cases}) == len(cases) > 0
    failures = []
    for number, tool in enumerate(promtools()):
        both = each_version or EVERYTHING
        chosen = [replace(c, version=number) for c in cases if both or zlib.crc32(c.name.encode()) % 2 == number]
        said = _run(tool, folder, chosen)
        if said:
            # Alerts with their texts are compared all at once, so the cases are tried alone.
            suspects = [case for case in chosen if case.name in said]
            alone = {case.name: text for case in suspects if (text := _run(tool, folder, [case]))}
            failures += [f"{name}:\n{text}" for name, text in alone.items()] or [f"Only side by side:\n{said}"]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def _run(tool: str, folder: Path, cases: Sequence[Case]) -> str:
    """Run the cases side by side, those with the same rules in one test; return what promtool says if one fails."""
    by_rules: dict[tuple[tuple[str, ...], str], list[Case]] = defaultdict(list)
    for case in cases:
        by_rules[case.rules].append(case)
    files = []
    for number, ((groups, text), together) in enumerate(by_rules.items()):
        (folder / f"rules-{number}.yaml").write_text(text)
        # In the order of the file a group reads series of other groups that are one evaluation old.
        tree = {
            "rule_files": [f"rules-{number}.yaml"],
            "evaluation_interval": "1m",
            "group_eval_order": [*groups],
            "tests": [_side_by_side(together)],
        }
        files.append(folder / f"test-{number}.yaml")
        files[-1].write_text(dump(tree))
    if not files:
        return ""
    # Memory costs less here than collecting garbage.
    environment = {**os.environ, "GOGC": "400"}
    command = [tool, "test", "rules", *map(str, files)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr if done.returncode else ""


def _side_by_side(cases: Sequence[Case]) -> dict[str, Any]:
    expected = [each for case in cases for each in case.expectations]
    alerts: dict[tuple[str, str], dict[str, Any]] = {}
    for each in expected:
        if "alertname" in each:
            merged = alerts.setdefault((each["alertname"], each["eval_time"]), {**each, "exp_alerts": []})
            merged["exp_alerts"] += each["exp_alerts"]
    lost = []
    if all(case.clustered for case in cases):
        end = max(int(each["eval_time"].removesuffix("m")) for each in expected)
        lost = [{"expr": f'count_over_time(ALERTS{{cluster=""}}[{end}m])', "eval_time": f"{end}m"}]
    return {
        "interval": "1m",
        "input_series": [series for case in cases for series in case.input_series],
        "promql_expr_test": [*(each for each in expected if "expr" in each), *lost],
        "alert_rule_test": [*alerts.values()],
    }
