"""Alertmanager's example configuration, compared with the alerts of the rules."""

import re
from pathlib import Path
from typing import Any

import yaml

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.load import alert_of_cause
from gpugauge.artifacts.rules.options import Parameters

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yaml").read_text())
ALERTS = [alert.name for alert in rules.alerts(Parameters(critical=0.2, per_cause=True))]


def receiver_of(alert: str) -> str:
    """Return the receiver of an alert that is not critical, by the first route that matches its name; "" for none."""
    for route in CONFIG["route"]["routes"]:
        (matcher,) = route["matchers"]
        found = re.fullmatch(r'alertname=~"(.*)"', matcher)
        if found and re.fullmatch(found[1], alert):
            return str(route["receiver"])
    return ""


def test_alerts_that_only_the_platform_can_fix_are_not_sent_to_owners() -> None:
    routed: dict[str, set[str]] = {}
    for alert in ALERTS:
        routed.setdefault(receiver_of(alert), set()).add(alert)
    unrouted = [f"alert {alert} has no route in deploy/prometheus/alertmanager.yaml" for alert in routed.pop("", ())]

    assert unrouted == []
    assert routed.keys() == {"platform", "owners"}
    assert {alert for alert in routed["platform"] if alert.startswith("Training")} == {
        alert_of_cause(cause) for cause in ("throttled", "contention", "memory_swap_io", "slow_network", "transfer")
    }
    assert {alert for alert in routed["owners"] if not alert.startswith("Training")} == {
        *("GpuHeldIdle", "TorchCpuBuildBusy", "AllocatedGpuUnused")
    }


def test_alerts_with_an_action_go_to_what_drains_nodes_and_to_people() -> None:
    actions = {alert.action for alert in rules.alerts(Parameters()) if alert.action}
    first = CONFIG["route"]["routes"][0]
    (pattern,) = [match[1] for matcher in first["matchers"] if (match := re.fullmatch(r'action=~"(.*)"', matcher))]

    assert actions == {"reset", "reset_later", "drain"}
    assert [action for action in actions if not re.fullmatch(pattern, action)] == []
    assert (first["receiver"], first["continue"]) == ("drain", True)
    assert {"instance", "uuid"} <= set(first["group_by"])


def test_alerts_about_a_gpu_are_one_notification() -> None:
    platform = [alert for alert in ALERTS if alert.startswith("Gpu") and receiver_of(alert) == "platform"]
    (route,) = [route for route in CONFIG["route"]["routes"] if route["matchers"] == ['alertname=~"Gpu.*"']]

    assert len(platform) > 10
    assert route["group_by"] == ["cluster", "instance", "uuid"]


def test_inhibitions_are_about_alerts_that_exist() -> None:
    sides = [rule[f"{side}_matchers"] for rule in CONFIG["inhibit_rules"] for side in ("source", "target")]
    patterns = [re.fullmatch(r'alertname=~?"(.*)"', matcher) for side in sides for matcher in side]

    assert None not in patterns
    assert [p[1] for p in patterns if p and not any(re.fullmatch(p[1], name) for name in ALERTS)] == []


def test_no_inhibition_asks_for_equal_severities() -> None:
    """Two alerts about a job have the job in common, and often no more."""
    assert all("severity" not in rule["equal"] and "cluster" in rule["equal"] for rule in CONFIG["inhibit_rules"])
