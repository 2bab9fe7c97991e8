"""The mixin, rendered by Jsonnet, beside the rules of the same parameters and the dashboards."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
from click.testing import CliRunner
from grafana.build import DASHBOARDS, as_json

from gpugauge.artifacts.rules import pack
from gpugauge.artifacts.rules.mixin import as_jsonnet
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.cli.main import main
from tests.artifacts.rules.test_texts import drawn
from tests.drawn import draws, seeds

MIXIN = Path(__file__).parents[3] / "deploy" / "mixin" / "mixin.libsonnet"
SEEDS = draws(2, 20)
# The parameters that the configuration sets, and its keys.
KEYS = {
    "threshold": "threshold",
    "matchers": "selector",
    "up_matchers": "upSelector",
    "cluster_label": "clusterLabel",
    "runbook_url": "runbookUrl",
    "dashboard_url": "dashboardUrl",
    "severities": "severities",
}


def rendered(mixin: Path, config: dict[str, Any], result: str) -> Any:
    """Return a result of the mixin with a configuration, as a user's own file writes it."""
    program = f"local mixin = (import {json.dumps(str(mixin))}) + {{ _config+:: {json.dumps(config)} }}; {result}"
    return json.loads(_jsonnet.evaluate_snippet("own", program))


def groups(mixin: Path, config: dict[str, Any]) -> list[Any]:
    return list(rendered(mixin, config, "mixin.prometheusRules.groups + mixin.prometheusAlerts.groups"))


def by_name(found: list[Any]) -> dict[str, Any]:
    assert len({group["name"] for group in found}) == len(found)
    return {group["name"]: group for group in found}


def more(seed: int) -> dict[str, Any]:
    """Return drawn parameters with those that only the mixin tests draw, thresholds with many digits among them."""
    draw = random.Random(seed)
    given = drawn(seed)
    floor = Parameters(**given).critical or 0.0001
    alert = draw.choice([alert.name for alert in pack.alerts(Parameters(**given))])
    return given | {
        "threshold": draw.choice([given["threshold"], draw.uniform(floor, 1), round(draw.uniform(floor, 1), 2)]),
        "up_matchers": draw.choice(['job=~".*gpugauge.*"', 'job="gpu",team!="50%"']),
        "severities": draw.choice([{}, {alert: "info"}]),
        "engine": draw.choice(["prometheus", "prometheus", "grafana"]),
    }


@seeds(SEEDS)
def test_a_configuration_gives_the_rules_of_the_same_flags(seed: int, tmp_path: Path) -> None:
    given = more(seed)
    wanted = Parameters(**given)
    if wanted.engine == "grafana" and not wanted.dashboard_url:
        del given["dashboard_url"]  # links lead to the Grafana that evaluates the alert
    (tmp_path / "rules.libsonnet").write_text(
        as_jsonnet(Parameters(**{key: value for key, value in given.items() if key not in KEYS}))
    )
    config = {key: getattr(wanted, name) for name, key in KEYS.items() if name in given}

    found = groups(tmp_path / "rules.libsonnet", config)

    assert by_name(found) == by_name(pack.groups(wanted)["groups"])


@seeds(SEEDS)
def test_flags_are_the_defaults_of_the_configuration(seed: int, tmp_path: Path) -> None:
    wanted = Parameters(**more(seed))
    (tmp_path / "rules.libsonnet").write_text(as_jsonnet(wanted))

    assert by_name(groups(tmp_path / "rules.libsonnet", {})) == by_name(pack.groups(wanted)["groups"])


def test_the_command_writes_it() -> None:
    made = CliRunner().invoke(main, ["rules", "--format", "jsonnet", "--patience", "30m"])

    assert (made.exit_code, made.output) == (0, as_jsonnet(Parameters(patience=1800)))


def test_the_committed_mixin_has_the_rules_and_each_dashboard() -> None:
    assert by_name(groups(MIXIN, {})) == by_name(pack.groups(Parameters())["groups"])
    expected = {f"gpugauge-{name}.json": json.loads(as_json(name)) for name in DASHBOARDS}
    assert rendered(MIXIN, {}, "mixin.grafanaDashboards") == expected


def test_a_group_stays_whole_among_the_alerts_or_the_rules() -> None:
    """Its alerts read what it has just recorded."""
    alerting, recording = (
        rendered(MIXIN, {}, f"mixin.{name}.groups") for name in ("prometheusAlerts", "prometheusRules")
    )

    assert all(any("alert" in rule for rule in group["rules"]) for group in alerting)
    assert recording
    assert all("record" in rule for group in recording for rule in group["rules"])


def test_mixins_are_added() -> None:
    other = "{ prometheusAlerts+:: { groups+: [{ name: 'other' }] }, grafanaDashboards+:: { 'other.json': {} } }"
    names = rendered(MIXIN, {}, f"[g.name for g in ({other} + mixin).prometheusAlerts.groups]")
    dashboards = rendered(MIXIN, {}, f"std.objectFieldsAll(({other} + mixin).grafanaDashboards)")

    assert {"other", "gpugauge-jobs"} <= set(names)
    assert {"other.json", "gpugauge-job.json"} <= set(dashboards)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"threshold": 40}, "_config.threshold must be above 0 and below 1, not 40"),
        ({"threshold": 0}, "_config.threshold must be above 0 and below 1, not 0"),
        ({"upSelector": ""}, "_config.upSelector must select the exporters"),
        ({"severities": {"GpuLst": "info"}}, "_config.severities: there is no alert GpuLst"),
    ],
)
def test_a_wrong_value_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        groups(MIXIN, config)


def test_the_threshold_stays_above_the_critical_one(tmp_path: Path) -> None:
    (tmp_path / "rules.libsonnet").write_text(as_jsonnet(Parameters(critical=0.2)))

    with pytest.raises(RuntimeError, match=r"must be above 0\.2 and below 1"):
        groups(tmp_path / "rules.libsonnet", {"threshold": 0.2})
