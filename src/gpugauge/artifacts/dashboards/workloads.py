"""Queries about jobs that several dashboards use. The identity of a job is that of the rules."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.common import JOB_LABELS, alerts
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, Scope, keys, recorded
from gpugauge.artifacts.rules.promql import PROCESS_JOB
from gpugauge.artifacts.rules.recording import HELD, LOST

# The window of the rules, for descriptions of panels.
WINDOW = "over the last 15 minutes"
# The nodes of the chosen job.
JOB_NODES = Scope({"instance": "~$instance"})
JOB_MATCHERS = {"workload_job_kind": "~$kind", "workload_namespace": "~$namespace"}
# The label for the name of a job in links and variables.
JOB_NAME = "who"
# Grafana's names of colours, for causes and for states of a process. On the CPU: red. Unknown: grey.
_CPU_CAUSES = ("no_cuda_build", "no_visible_device", "driver_mismatch", "unsupported_arch", "model_on_cpu")
CAUSE_COLORS = dict(
    zip(_CPU_CAUSES, ("dark-red", "semi-dark-red", "red", "light-red", "super-light-red"), strict=True),
    data_loading="orange",
    host_bound="yellow",
    transfer="purple",
    underfilled="blue",
    precision_unused="super-light-blue",
    waiting_for_peers="green",
    throttled="#e0226e",
    memory_pressure="dark-purple",
    contention="super-light-purple",
    cpu_limited="dark-orange",
    memory_swap_io="dark-yellow",
    unused_gpus="dark-blue",
    unknown="#8e8e8e",
)
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
_KEY = {"workload_job": "$workload"}
_PROCESS = keys("process")
_JOB = ", ".join(JOB_LABELS)
RANK_LEGEND = "{{instance}} · rank {{rank}} · {{process}}"


def with_job_name(expr: Expr) -> Expr:
    """Return the expression with the name of the job in the label `who`."""
    return expr.then(f'label_replace({{}}, "{JOB_NAME}", "$1", "workload_job", "(.+)")')


def lost_gpus(lost: Expr) -> Expr:
    """Return shares of the GPU time lost as a number of GPUs."""
    return lost.then(f"{{}}\n* on ({_JOB}) group_left () {recorded(HELD)}", COUNT)


def lost(**labels: str) -> Expr:
    """Return the number of GPUs lost, by job and cause."""
    return lost_gpus(recorded(LOST, **labels))


def programs(scope: Scope) -> Expr:
    """Return the number of processes of each job, with its owner, pod and command."""
    info = scope.select("gpu_process_host_info")
    named = f'label_replace({info}, "owner", "$1", "workload_user", "(.+)")'
    one = f"topk by ({_PROCESS}) (1, max by ({_PROCESS}, owner, workload_pod, workload_command) ({named}))"
    of_jobs = (
        f"count by ({_JOB}, owner, workload_pod, workload_command) (\n"
        f"{PROCESS_JOB} * on ({_PROCESS}) group_left (owner, workload_pod, workload_command) {one}\n)"
    )
    return Expr(f"topk by ({_JOB}) (1, {of_jobs})", COUNT)


def of_job(name: str, window: str = "") -> Expr:
    """Return a recorded series of the chosen job; with a window, its last value in the window."""
    series = recorded(name, **JOB_MATCHERS, **_KEY)
    return series.then(f"last_over_time({{}}[{window}])") if window else series


def by_process(expr: Expr, *labels: str) -> Expr:
    """Return the series of the processes of the chosen job, by process and the labels."""
    kept = expr.by(_PROCESS, *labels, operator="max")
    return kept.then(f"{{}}\n* on ({_PROCESS}) group_left () {of_job(PROCESS_JOB)}")


def by_rank(expr: Expr, *labels: str) -> Expr:
    """Return the same for processes with the hook, with the labels that RANK_LEGEND needs."""
    rank = f"topk by ({_PROCESS}) (1, max by ({_PROCESS}, instance, rank) ({JOB_NODES.select('torch_process_info')}))"
    return by_process(expr, *labels).then(f"{{}}\n* on ({_PROCESS}) group_left (instance, rank) {rank}")


def alerts_of_job() -> Expr:
    """Return the alerts about the job chosen that fire."""
    return alerts(**JOB_MATCHERS, **_KEY)
