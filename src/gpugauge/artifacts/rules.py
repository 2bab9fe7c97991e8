"""The Prometheus rules, deploy/prometheus/rules/: `gpugauge rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from gpugauge.artifacts import rules_cards, rules_jobs, rules_recording
from gpugauge.artifacts.rules_alert import Alert
from gpugauge.artifacts.rules_settings import Parameters, RulesError, duration

BUILDERS: dict[str, Callable[[Parameters], list[Alert]]] = {
    "gpugauge-cards": rules_cards.of_cards,
    "gpugauge-jobs": rules_jobs.of_jobs,
    "gpugauge-exporters": rules_cards.of_exporters,
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
    found = [alert for build in BUILDERS.values() for alert in build(p)]
    unknown = sorted(p.severities.keys() - {alert.name for alert in found})
    if unknown:
        raise RulesError(f"severities.{unknown[0]}: there is no such alert")
    return found


def groups(p: Parameters) -> dict[str, Any]:
    """Return the rule file; the rules of a group run in order, so that alerts see what was just recorded."""
    alerts(p)
    recordings = {"gpugauge-cards": rules_recording.of_cards(p), "gpugauge-jobs": rules_recording.of_jobs(p)}
    return {
        "groups": [
            {
                "name": name,
                "interval": duration(p.evaluation_interval),
                "rules": [
                    *(rule.as_dict() for rule in recordings.get(name, ())),
                    *(alert.as_dict(p) for alert in build(p)),
                ],
            }
            for name, build in BUILDERS.items()
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
