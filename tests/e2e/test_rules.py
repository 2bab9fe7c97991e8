"""Every alert in Prometheus' own rule tester: firing, not firing, resolving, absent series, restarts and gaps."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpugauge.artifacts import rules
from gpugauge.artifacts.rules_settings import Parameters
from tests.artifacts.rule_stories import QUIET, STORIES, Quiet, Row, Story
from tests.e2e.programs import need

pytestmark = pytest.mark.e2e

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "gpugauge.yaml"
Phases = list[tuple[str, int]]
by_alert = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)


def firing(alert: str, minute: int, minutes: int, count: int | None, labels: Mapping[str, str]) -> dict[str, Any]:
    """Expect `count` evaluations at which the alert was firing in the `minutes` before `minute`; None is never.

    Half a minute less, because the ends of a range belong to it in Prometheus 2 and not in 3.
    """
    name = f'alertname="{alert}",' if alert else ""
    expected = {"alertname": alert, "alertstate": "firing", **labels}
    text = ",".join(f'{key}="{value}"' for key, value in sorted(expected.items()))
    return {
        "expr": f'count_over_time(ALERTS{{{name}alertstate="firing"}}[{minutes * 60 - 30}s])',
        "eval_time": f"{minute}m",
        "exp_samples": [] if count is None else [{"labels": f"{{{text}}}", "value": count}],
    }


def promtool(
    folder: Path, rows: Sequence[Row], phases: Phases, expected: list[dict[str, Any]], alert: str | None = None
) -> None:
    """Run the rules over the phases; with `alert` only that one and what is recorded, which is much faster."""
    tree = rules.groups(Parameters())
    for group in tree["groups"]:
        group["rules"] = [rule for rule in group["rules"] if alert is None or rule.get("alert", alert) == alert]
    (folder / "rules.yaml").write_text(yaml.safe_dump(tree))
    series = {
        row.name + "{" + ",".join(f'{k}="{v}"' for k, v in {"instance": "node-1", **row.labels}.items()) + "}": row
        for row in rows
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": row.values(phases)} for name, row in series.items()],
        "promql_expr_test": expected,
    }
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}, width=1000)
    )
    done = subprocess.run(
        [need("promtool"), "test", "rules", str(folder / "test.yaml")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def identity(story: Story) -> dict[str, str]:
    return {"severity": story.severity, **story.identity}


def test_the_file_is_valid() -> None:
    subprocess.run([need("promtool"), "check", "rules", str(FILE)], check=True, capture_output=True)


@by_alert
def test_fires_with_the_identity_and_then_resolves(tmp_path: Path, story: Story) -> None:
    expected = [
        firing(story.alert, 60, 1, 1, identity(story)),
        firing(story.alert, 150, 30, None, {}),
    ]

    promtool(tmp_path, story.rows, [("good", 20), ("bad", 41), ("good", 90)], expected, story.alert)


@by_alert
def test_restart_and_gap_do_not_resolve(tmp_path: Path, story: Story) -> None:
    phases = [("bad", 60), ("restart", 2), ("bad", 30), ("gap", 10), ("bad", 30)]

    expected = [firing(story.alert, 131, 72, 72, identity(story))]

    promtool(tmp_path, story.rows, phases, expected, story.alert)


@by_alert
def test_good_restart_gap_and_vanishing_do_not_fire(tmp_path: Path, story: Story) -> None:
    phases = [("good", 60), ("restart", 2), ("good", 30), ("gap", 10), ("good", 30), ("gone", 40)]

    promtool(tmp_path, story.rows, phases, [firing(story.alert, 170, 171, None, {})], story.alert)


@by_alert
def test_vanished_series_do_not_resolve_at_once(tmp_path: Path, story: Story) -> None:
    expected = [firing(story.alert, 70, 10, 10, identity(story)), firing(story.alert, 130, 20, None, {})]

    promtool(tmp_path, story.rows, [("bad", 60), ("gone", 71)], expected, story.alert)


def test_without_any_series_nothing_fires(tmp_path: Path) -> None:
    promtool(tmp_path, (), [("gone", 60)], [firing("", 60, 60, None, {})])


@pytest.mark.parametrize("quiet", QUIET, ids=lambda quiet: quiet.what)
def test_nothing_fires_for(tmp_path: Path, quiet: Quiet) -> None:
    end = sum(minutes for _, minutes in quiet.phases) - 1

    promtool(tmp_path, quiet.rows, quiet.phases, [firing("", end, end, None, {})])
