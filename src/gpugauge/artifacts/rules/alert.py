"""The alerting rule, and templates for its annotations. Numbers and names are in annotations, never in labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpugauge.artifacts.rules.options import Parameters, Severity
from gpugauge.artifacts.rules.recording import LOST
from gpugauge.duration import format_duration

_MATCH = (
    'workload_namespace=%q,workload_job_id=%q,workload_user=%q}{tail}" $labels.workload_namespace '
    "$labels.workload_job_id $labels.workload_user | query"
)


def for_each_series(query: str, tail: str, text: str) -> str:
    """Return a template that writes `text` for each series of the alert's job in the result of the query."""
    return '{{ range printf "' + query + "{" + _MATCH.replace("{tail}", tail) + " }}" + text + "{{ end }}"


JOB_NAME = (
    "{{ $labels.workload_kind }} {{ $labels.workload_namespace }}{{ if $labels.workload_namespace }}/{{ end }}"
    "{{ $labels.workload_job_id }}{{ $labels.workload_user }}"
)
# sort_desc, because the order of the result of a query in Prometheus 3 is random.
LOST_TO = for_each_series(f"sort_desc({LOST}", " >= 0.05)", " {{ .Labels.cause }} {{ .Value | humanizePercentage }};")
# With the pod's name, because the job id of a pod is its uid. The processes of a job may belong to several users.
PROGRAMS = (
    'Programs:{{ range printf "count by (workload_pod, workload_command) (gpu_process_host_info'
    '{workload_namespace=%q,workload_job_id=%q,workload_user=~%q})" $labels.workload_namespace '
    '$labels.workload_job_id (printf "%s.*" $labels.workload_user) | query '
    '| sortByLabel "workload_pod" }}'
    " {{ .Labels.workload_pod }} {{ .Labels.workload_command }};{{ end }}"
)
# What a machine may do about an alert: see deploy/prometheus/alertmanager.yaml.
Action = Literal["", "reset", "drain"]


@dataclass(frozen=True)
class Alert:
    """An alerting rule. `hold` is its `for`: the seconds for which the condition must hold before the alert fires.
    `action` becomes a label, by which Alertmanager hands it to what drains nodes.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    hold: int = 0
    action: Action = ""

    def as_dict(self, p: Parameters) -> dict[str, object]:
        """Return the rule in the form of a Prometheus rule file."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": format_duration(self.hold)} if self.hold else {}),
            "keep_firing_for": format_duration(p.keep_firing),
            "labels": {
                "severity": p.severities.get(self.name, self.severity),
                **({"action": self.action} if self.action else {}),
            },
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{p.runbook}#{self.name.lower()}",
            },
        }
