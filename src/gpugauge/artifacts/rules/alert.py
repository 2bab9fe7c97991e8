"""The alerting rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpugauge.artifacts.rules.options import Parameters, Severity
from gpugauge.duration import format_duration

About = Literal["job", "GPU", "exporter"]
# By subject: the dashboard, and the labels of an alert by variable of the dashboard.
_DASHBOARDS: dict[str, tuple[str, dict[str, str]]] = {
    "job": (
        "gpugauge-job",
        {"kind": "workload_job_kind", "namespace": "workload_namespace", "workload": "workload_job"},
    ),
    "GPU": ("gpugauge-node", {"instance": "instance", "uuid": "uuid"}),
    "exporter": ("gpugauge-exporter", {"instance": "instance"}),
}
# What a machine may do about an alert: see deploy/prometheus/alertmanager.yaml.
Action = Literal["", "reset", "drain"]


@dataclass(frozen=True)
class Alert:
    """An alerting rule. `hold` is its `for`: the seconds for which the condition must hold before the alert fires.
    `when` is the condition in words, for `gpugauge rules --explain`. `action` becomes a label, by which Alertmanager
    hands it to what drains nodes.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    hold: int = 0
    about: About = "GPU"
    when: str = ""
    action: Action = ""

    def severity_with(self, p: Parameters) -> Severity:
        """Return the severity that the parameters give to the alert."""
        return p.severities.get(self.name, self.severity)

    def as_dict(self, p: Parameters) -> dict[str, object]:
        """Return the rule in the form of a Prometheus rule file."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": format_duration(self.hold)} if self.hold else {}),
            "keep_firing_for": format_duration(p.keep_firing),
            "labels": {"severity": self.severity_with(p), **({"action": self.action} if self.action else {})},
            "annotations": {
                "summary": self.summary,
                "description": self.description.strip(),
                "runbook_url": f"{p.runbook_url}#{self.name.lower()}",
                **({"dashboard_url": self._dashboard(p.dashboard_url)} if p.dashboard_url else {}),
            },
        }

    def _dashboard(self, grafana: str) -> str:
        """Return the address of the dashboard about the alert's subject."""
        uid, variables = _DASHBOARDS[self.about]
        texts = {
            name: f"{{{{ with $labels.{label} }}}}{{{{ . | urlquery }}}}{{{{ end }}}}"
            for name, label in variables.items()
        }
        return f"{grafana.rstrip('/')}/d/{uid}?" + "&".join(f"var-{name}={text}" for name, text in texts.items())
