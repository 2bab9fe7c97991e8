"""The alerting rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpugauge.artifacts.rules.options import Severity
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import JOB_USER, TEXT_LABELS, TEXTS
from gpugauge.base.duration import format_duration
from gpugauge.faults.table import Action

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
# The address of the Grafana that evaluates the alert, which ends with a slash.
THIS_GRAFANA = '{{ reReplaceAll "/$" "" externalURL }}'


@dataclass(frozen=True)
class Alert:
    """An alerting rule. `hold` is the seconds for which the condition must hold before the alert fires. Windows in the
    expression see to it: Prometheus forgets a `for` of less than ten minutes at its restart, and a gap begins it again.
    `when` is the condition in words, for `gpugauge rules --explain`. `action` becomes a label, by which Alertmanager
    (deploy/prometheus/alertmanager.yaml) hands it to what drains nodes. `described` is false for an alert about a job
    whose name may be unknown. `words` are labels of the expression for its texts only. `users` are those whom a fault
    affects, in an annotation. `about` follows from its group.
    """

    name: str
    expr: str
    summary: str
    description: str
    hold: int = 0
    when: str = ""
    severity: Severity = "warning"
    action: Action = ""
    described: bool = True
    words: tuple[str, ...] = ()
    users: str = ""
    about: About = "job"

    def as_dict(self, s: Selectors) -> dict[str, object]:
        """Return the rule in the form of a Prometheus rule file."""
        joins, expr = self.about == "job" and self.described, self.expr
        info, labels = (TEXTS, TEXT_LABELS) if s.engine == "grafana" else (JOB_USER, ())
        if joins:
            expr = f"(\n{expr}\n)\n* on ({s.job}) group_left ({', '.join(('workload_user', *labels))}) {info}"
        # Templates see these labels. Without a value in the rule they are no part of the alert's identity.
        dropped = dict.fromkeys(labels if joins else self.words, "")
        grafana = s.dashboard_url.rstrip("/") or (THIS_GRAFANA if s.engine == "grafana" else "")
        return {
            "alert": self.name,
            "expr": expr,
            "keep_firing_for": format_duration(s.keep_firing),
            "labels": {
                "severity": s.severities.get(self.name, self.severity),
                **({"action": self.action} if self.action else {}),
                **dropped,
            },
            "annotations": {
                "summary": self.summary,
                "description": self.description.strip(),
                **({"users": self.users} if self.users else {}),
                "runbook_url": f"{s.runbook_url}#{self.name.lower()}",
                **({"dashboard_url": self._dashboard(grafana)} if grafana else {}),
            },
        }

    def _dashboard(self, grafana: str) -> str:
        uid, variables = _DASHBOARDS[self.about]
        texts = {
            name: f"{{{{ with $labels.{label} }}}}{{{{ . | urlquery }}}}{{{{ end }}}}"
            for name, label in variables.items()
        }
        return f"{grafana}/d/{uid}?" + "&".join(f"var-{name}={text}" for name, text in texts.items())
