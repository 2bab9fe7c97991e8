"""Prometheus' rule tester, `promtool test rules`, on the rules and on the rows of stories."""

from __future__ import annotations

import functools
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from qa.bench.alerts.replay import dump

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.artifacts.rules.rule_stories import Row, Story
from tests.e2e.programs import prometheus3
from tests.needs import need

Phases = list[tuple[str, int]]


@functools.cache
def promtools() -> tuple[str, str]:
    """Return promtool of the machine (Debian's 2.42 or newer), and that of Prometheus 3."""
    return need("promtool"), prometheus3("promtool")


def tools() -> Any:
    """Return a fixture with each promtool."""

    @pytest.fixture(params=["oldest", "current"], scope="module")
    def tool(request: pytest.FixtureRequest) -> str:
        return promtools()[request.param == "current"]

    return tool


def tools_by_turns() -> Any:
    """Return a fixture with one of the two, by the name of the test: half the time of hundreds of tests."""

    @pytest.fixture
    def tool(request: pytest.FixtureRequest) -> str:
        return promtools()[zlib.crc32(request.node.name.encode()) % 2]

    return tool


def story_identity(story: Story) -> dict[str, str]:
    """Return the labels of the story's alert, except its name."""
    return {"severity": story.severity, **story.identity}


def firing(alert: str, minute: int, minutes: int, count: int | None, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an expectation: the alert fires at `count` evaluations in the `minutes` before `minute`; None is never.

    The range is half a minute shorter, because it includes its begin in Prometheus 2 but not in Prometheus 3.
    """
    name = f'alertname="{alert}",' if alert else ""
    expected = {"alertname": alert, "alertstate": "firing", **labels}
    text = ",".join(f'{key}="{value}"' for key, value in sorted(expected.items()))
    return {
        "expr": f'count_over_time(ALERTS{{{name}alertstate="firing"}}[{minutes * 60 - 30}s])',
        "eval_time": f"{minute}m",
        "exp_samples": [] if count is None else [{"labels": f"{{{text}}}", "value": count}],
    }


def keep_needed(groups: list[dict[str, Any]], alert: str) -> None:
    """Remove the rules that the alert does not need; a recording rule is needed where its name is in the text."""
    every = [rule for group in groups for rule in group["rules"]]
    records = [rule for rule in every if "record" in rule]
    kept = [rule for rule in every if rule.get("alert") == alert]
    for rule in kept:  # grows
        text = str(rule)
        kept += [other for other in records if other["record"] in text and other not in kept]
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if rule in kept]


def verify(tool: str, test: Path) -> None:
    """Run a file of rule tests."""
    done = subprocess.run([tool, "test", "rules", str(test)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(
    tool: str,
    folder: Path,
    rows: Sequence[Row],
    phases: Phases,
    expected: list[dict[str, Any]],
    alert: str | None = None,
    annotated: Sequence[dict[str, Any]] = (),
    parameters: Parameters | None = None,
    beside: Parameters | None = None,
) -> None:
    """Run the rules over the phases; with `alert`, this alert and the recording rules that it needs, which is faster.

    `beside` are the parameters of a second set of rules in the same Prometheus.
    """
    tree = rules.groups(parameters or Parameters())
    tree["groups"] += rules.groups(beside)["groups"] if beside else []
    if alert:
        keep_needed(tree["groups"], alert)
    (folder / "rules.yaml").write_text(dump(tree))
    series = {
        row.name + "{" + ",".join(f'{k}="{v}"' for k, v in {"instance": "node-1", **row.labels}.items()) + "}": row
        for row in rows
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": row.values(phases)} for name, row in series.items()],
        "promql_expr_test": expected,
        "alert_rule_test": [*annotated],
    }
    # In the order of the file a group reads series of other groups that are one evaluation old.
    order = [group["name"] for group in tree["groups"]]
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "group_eval_order": order, "tests": [test]}
    (folder / "test.yaml").write_text(dump(tests))
    verify(tool, folder / "test.yaml")
