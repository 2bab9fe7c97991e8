"""What an alerting rule is, and the texts of its annotations: numbers and names are there, never in labels."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.artifacts.rules.options import Parameters, Severity, duration
from gpugauge.artifacts.rules.recording import LOST

_MATCH = (
    'workload_namespace=%q,workload_job_id=%q,workload_user=%q}{tail}" $labels.workload_namespace '
    "$labels.workload_job_id $labels.workload_user | query"
)


def each(query: str, tail: str, text: str) -> str:
    """Write `text` for each series of the job that the query finds."""
    return '{{ range printf "' + query + "{" + _MATCH.replace("{tail}", tail) + " }}" + text + "{{ end }}"


WHO = (
    "{{ $labels.workload_kind }} {{ $labels.workload_namespace }}{{ if $labels.workload_namespace }}/{{ end }}"
    "{{ $labels.workload_job_id }}{{ $labels.workload_user }}"
)
# Prometheus 3 gives what it finds in no order, and another one each time.
CAUSES_TOLD = each(f"sort_desc({LOST}", " >= 0.05)", " {{ .Labels.cause }} {{ .Value | humanizePercentage }};")
# A pod's job id is its uid: people know it by its name. Where there is a job, its processes are of any user.
PROGRAMS = (
    'Programs:{{ range printf "count by (workload_pod, workload_command) (gpu_process_host_info'
    '{workload_namespace=%q,workload_job_id=%q,workload_user=~%q})" $labels.workload_namespace '
    '$labels.workload_job_id (printf "%s.*" $labels.workload_user) | query '
    '| sortByLabel "workload_pod" }}'
    " {{ .Labels.workload_pod }} {{ .Labels.workload_command }};{{ end }}"
)
NODE = '{{ range printf "gpu_up{uuid=%q}" $labels.uuid | query }} {{ .Labels.instance }}{{ end }}'


@dataclass(frozen=True)
class Alert:
    """An alerting rule; `hold` is the pause in evaluations that `for` asks for, seconds."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    hold: int = 0

    def as_dict(self, p: Parameters) -> dict[str, object]:
        """Return the rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": duration(self.hold)} if self.hold else {}),
            "keep_firing_for": duration(p.keep_firing),
            "labels": {"severity": p.severities.get(self.name, self.severity)},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{p.runbook}#{self.name.lower()}",
            },
        }
