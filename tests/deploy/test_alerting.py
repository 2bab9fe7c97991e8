"""Alertmanager's example configuration, held against the alerts that exist."""

import re
from pathlib import Path
from typing import Any

import yaml

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.jobs import alert_of_cause
from gpugauge.artifacts.rules.options import Parameters

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yaml").read_text())
ALERTS = [alert.name for alert in rules.alerts(Parameters())]


def receiver_of(alert: str) -> str:
    """Return who is told of an alert that is not critical; the first route that matches its name decides."""
    for route in CONFIG["route"]["routes"]:
        (matcher,) = route["matchers"]
        found = re.fullmatch(r'alertname=~"(.*)"', matcher)
        if found and re.fullmatch(found[1], alert):
            return str(route["receiver"])
    return "nobody"


def test_the_owner_of_a_training_is_not_told_what_only_the_platform_can_mend() -> None:
    told: dict[str, set[str]] = {}
    for alert in ALERTS:
        told.setdefault(receiver_of(alert), set()).add(alert)

    assert told.keys() == {"platform", "owners"}
    assert {alert for alert in told["platform"] if alert.startswith("Training")} == {
        alert_of_cause(cause) for cause in ("throttled", "contention", "memory_swap_io", "transfer")
    }
    assert {alert for alert in told["owners"] if not alert.startswith("Training")} == {
        *("GpuHeldIdle", "TorchCpuBuildBusy", "AllocatedGpuUnused")
    }


def test_every_inhibition_of_the_runbook_is_there() -> None:
    (block,) = re.findall(r"```yaml\n(inhibit_rules:\n.*?)```", (ROOT / "docs/runbook.md").read_text(), re.DOTALL)

    assert [rule for rule in yaml.safe_load(block)["inhibit_rules"] if rule not in CONFIG["inhibit_rules"]] == []


def test_inhibitions_are_about_alerts_that_exist() -> None:
    sides = [rule[f"{side}_matchers"] for rule in CONFIG["inhibit_rules"] for side in ("source", "target")]
    patterns = [re.fullmatch(r'alertname=~?"(.*)"', matcher) for side in sides for matcher in side]

    assert None not in patterns
    assert [p[1] for p in patterns if p and not any(re.fullmatch(p[1], name) for name in ALERTS)] == []
