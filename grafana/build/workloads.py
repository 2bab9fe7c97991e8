"""Queries about jobs that several dashboards use. The identity of a job is that of the rules.

Those about all jobs read recorded series, those about one job do not.
"""

from __future__ import annotations

from gpugauge.artifacts.rules.recording import ARMED, HELD, LOST, LOST_GPUS, PROBLEM
from gpugauge.verdict.causes import CAUSES
from grafana.build.common import JOB_LABELS, alerts
from grafana.build.queries import COUNT, Expr, Scope, keys, recorded

# The window of the rules, and the same for descriptions of panels.
RANGE = "15m"
WINDOW = "over the last 15 minutes"
# The nodes of the chosen job.
JOB_NODES = Scope({"instance": "~$instance"})
JOB_MATCHERS = {"workload_job_kind": "~$kind", "workload_namespace": "~$namespace"}
# Grafana's names of colours, for causes and for states of a process. On the CPU: red. Unknown: grey.
CAUSE_COLORS = {cause.name: cause.colour for cause in CAUSES.values()}
STATE_COLORS = {
    "training": "green",
    "evaluating": "super-light-green",
    "checkpointing": "dark-green",
    "generating": "light-green",
    "starting": "super-light-blue",
    "compiling": "blue",
    "not_training": "dark-blue",
    "unknown": "#8e8e8e",
    "stalled": "red",
    "held_idle": "orange",
    "training_on_cpu": "dark-red",
}
PHASE_COLORS = STATE_COLORS | {"loading": CAUSE_COLORS["data_loading"], "other": STATE_COLORS["unknown"]}
_PROCESS = keys("process")
_JOB = ", ".join(JOB_LABELS)
RANK_LEGEND = "{{instance}} · rank {{rank}} · {{process}}"
# Each has the labels of the job; in a sidecar there is only that of the hook.
_INFOS = ("gpu_process_host_info", "gpu_process_info", "torch_process_info")
CHOSEN = Scope({"instance": "~$instance", **JOB_MATCHERS, "workload_job": "$workload"})


def judged() -> str:
    """Return 1 for each job with evidence of a training: its load is judged, or it has a problem of its own."""
    problem = f"max by ({_JOB}) ({recorded(PROBLEM)})"
    return f"(max by ({_JOB}) ({recorded(ARMED)}) or {problem})"


def wasted() -> Expr:
    """Return the number of GPUs that each job with evidence of a training wastes."""
    return recorded(LOST_GPUS, **JOB_MATCHERS).then(f"({{}} and on ({_JOB}) {judged()})")


def held() -> Expr:
    """Return the number of GPUs that each job with evidence of a training holds."""
    return recorded(HELD, **JOB_MATCHERS).then(f"({{}} and on ({_JOB}) {judged()})")


def wasted_by_cause() -> Expr:
    """Return the number of GPUs wasted, by job and cause."""
    shares = recorded(LOST, **JOB_MATCHERS)
    return shares.then(f"({{}}\n* on ({_JOB}) group_left () {recorded(HELD)}\nand on ({_JOB}) {judged()})", COUNT)


def gpu_hours(expr: Expr) -> Expr:
    """Return a number of GPUs as GPU hours in the time shown, in steps of five minutes, twelve in an hour."""
    return expr.then("sum_over_time(({})[$__range:5m]) / 12")


def members() -> str:
    """Return 1 for each process of the chosen job. It needs no rules."""
    infos = " or ".join(f"max by ({_PROCESS}) ({CHOSEN.select(name)})" for name in _INFOS)
    return f"({infos})"


def by_process(expr: Expr, *labels: str) -> Expr:
    """Return the series of the processes of the chosen job, by process and the labels."""
    kept = expr.by(_PROCESS, *labels, operator="max")
    return kept.then(f"{{}}\n* on ({_PROCESS}) group_left () {members()}")


def by_rank(expr: Expr, *labels: str) -> Expr:
    """Return the same for processes with the hook, with the labels that RANK_LEGEND needs."""
    rank = f"topk by ({_PROCESS}) (1, max by ({_PROCESS}, instance, rank) ({JOB_NODES.select('torch_process_info')}))"
    return by_process(expr, *labels).then(f"{{}}\n* on ({_PROCESS}) group_left (instance, rank) {rank}")


def job_held() -> Expr:
    """Return the number of GPUs that the chosen job holds."""
    return by_process(JOB_NODES.rate("training_gpu_held_seconds_total", RANGE)).by().with_unit(COUNT)


def job_wasted() -> Expr:
    """Return the number of GPUs that the chosen job wastes, by cause."""
    return by_process(JOB_NODES.rate("training_lost_seconds_total", RANGE), "cause").by("cause").with_unit(COUNT)


def alerts_of_job() -> Expr:
    """Return the alerts about the chosen job that fire."""
    return alerts(**JOB_MATCHERS, workload_job="$workload")
