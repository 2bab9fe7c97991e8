"""The Prometheus rules, deploy/prometheus/rules/: `gpugauge rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from gpugauge.artifacts.rules import devices as rules_cards
from gpugauge.artifacts.rules import jobs as rules_jobs
from gpugauge.artifacts.rules import recording as rules_recording
from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.options import Parameters, RulesError, duration
from gpugauge.artifacts.rules.recording import Recording


def _nothing(_: Parameters) -> list[Any]:
    return []


def _each(p: Parameters) -> int:
    return p.evaluation_interval


def _every_other(p: Parameters) -> int:
    # What is recorded must not be forgotten before it is recorded again: Prometheus looks five minutes back.
    return max(p.evaluation_interval, min(2 * p.evaluation_interval, 120))


class Group(NamedTuple):
    """What a group records, its alerts, and the seconds between two evaluations."""

    recordings: Callable[[Parameters], list[Recording]]
    alerts: Callable[[Parameters], list[Alert]]
    interval: Callable[[Parameters], int] = _each


# Prometheus evaluates groups beside each other, and spreads them over the interval; what another group recorded is up
# to that one's interval old. So a load stands beside what says whether it may be judged, and nothing begins to fire
# after the end of its job. What jobs lose is a mean over `patience`, and the dearest by far: it is asked half as often.
GROUPS: dict[str, Group] = {
    "gpugauge-cards": Group(rules_recording.of_cards, rules_cards.of_cards),
    "gpugauge-owners": Group(rules_recording.of_owners, _nothing),
    "gpugauge-processes": Group(rules_recording.of_processes, rules_jobs.of_processes),
    "gpugauge-jobs": Group(rules_recording.of_jobs, rules_jobs.of_jobs, _every_other),
    "gpugauge-use": Group(rules_recording.of_use, rules_jobs.of_use),
    "gpugauge-exporters": Group(_nothing, rules_cards.of_exporters),
}
_HEADER = "# Made by `gpugauge rules`; a test proves that it is current. Prometheus 2.42 or newer; docs/runbook.md.\n"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is read."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def alerts(p: Parameters) -> list[Alert]:
    """Return all alerts; raises RulesError for a severity of an alert that does not exist."""
    found = [alert for group in GROUPS.values() for alert in group.alerts(p)]
    unknown = sorted(p.severities.keys() - {alert.name for alert in found})
    if unknown:
        raise RulesError(f"severities.{unknown[0]}: there is no such alert")
    return found


def groups(p: Parameters) -> dict[str, Any]:
    """Return the rule file; the rules of a group run in order, so that alerts see what it just recorded."""
    alerts(p)
    return {
        "groups": [
            {
                "name": name,
                "interval": duration(group.interval(p)),
                "rules": [
                    *(rule.as_dict() for rule in group.recordings(p)),
                    *(alert.as_dict(p) for alert in group.alerts(p)),
                ],
            }
            for name, group in GROUPS.items()
        ]
    }


def as_prometheus(p: Parameters) -> str:
    """Return a rule file of Prometheus."""
    return _HEADER + _yaml(groups(p))


def as_kubernetes(p: Parameters) -> str:
    """Return a PrometheusRule of the Prometheus operator."""
    metadata = {"name": "gpugauge", "labels": {"app.kubernetes.io/name": "gpugauge"}}
    head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
    return _HEADER + _yaml(head | {"spec": groups(p)})


def _yaml(tree: object) -> str:
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=150, allow_unicode=True)
    return text


FORMATS: dict[str, Callable[[Parameters], str]] = {"prometheus": as_prometheus, "kubernetes": as_kubernetes}
