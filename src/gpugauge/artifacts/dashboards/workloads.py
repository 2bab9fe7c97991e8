"""Queries about jobs that several dashboards ask; a job's identity is that of the rules."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.board import alerts
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, Scope, recorded
from gpugauge.artifacts.rules.recording import HELD, JOB, LOST, PROCESS_JOB

# The job that the variables choose, on the nodes where it runs.
CHOSEN = Scope({"instance": "~$instance"})
GROUP = {"workload_kind": "~$kind", "workload_namespace": "~$namespace"}
# One name for a job that is never empty: its id, or its user where there is no job. Links and variables need that.
WHO = "who"
# Grafana's names of colours, for causes and for states of a process. On the CPU: red. Nobody knows: grey.
_ON_CPU = ("no_cuda_build", "no_visible_device", "driver_mismatch", "unsupported_arch", "model_on_cpu")
CAUSE_COLORS = dict(
    zip(_ON_CPU, ("dark-red", "semi-dark-red", "red", "light-red", "super-light-red"), strict=True),
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
_KEYS = ({"workload_job_id": "$workload"}, {"workload_job_id": "", "workload_user": "$workload"})
RANK = "{{instance}} · rank {{rank}} · {{process}}"


def who(expr: Expr) -> Expr:
    """Give jobs their one name, in the label `who`."""
    by_user = f'label_replace({{}}, "{WHO}", "$1", "workload_user", "(.+)")'
    return expr.then(f'label_replace({by_user}, "{WHO}", "$1", "workload_job_id", "(.+)")')


def lost_gpus(lost: Expr) -> Expr:
    """Turn shares of the time lost into GPUs' worth of it."""
    return lost.then(f"{{}}\n* on ({JOB}) group_left () {recorded(HELD)}", COUNT)


def lost(**labels: str) -> Expr:
    """Return the GPUs' worth of time that jobs lose, by job and cause."""
    return lost_gpus(recorded(LOST, **labels))


def programs(scope: Scope) -> Expr:
    """Count the processes of each job, with the names by which people know it: owner, pod and command."""
    info = scope.select("gpu_process_host_info")
    named = f'label_replace({info}, "owner", "$1", "workload_user", "(.+)")'
    one = f"topk by (process) (1, max by (process, owner, workload_pod, workload_command) ({named}))"
    of_jobs = (
        f"count by ({JOB}, owner, workload_pod, workload_command) (\n"
        f"{PROCESS_JOB} * on (process) group_left (owner, workload_pod, workload_command) {one}\n)"
    )
    return Expr(f"topk by ({JOB}) (1, {of_jobs})", COUNT)


def of_job(name: str, window: str = "") -> Expr:
    """Return what the rules record of the job chosen; with a window, what was last recorded in it."""
    found = [recorded(name, **GROUP, **key) for key in _KEYS]
    texts = [f"last_over_time({expr}[{window}])" if window else expr.text for expr in found]
    return Expr(f"({' or '.join(texts)})", found[0].unit)


def by_process(expr: Expr, *labels: str) -> Expr:
    """Keep what belongs to the processes of the job chosen, by process and the labels."""
    kept = expr.by("process", *labels, operator="max")
    return kept.then(f"{{}}\n* on (process) group_left () {of_job(PROCESS_JOB)}")


def by_rank(expr: Expr, *labels: str) -> Expr:
    """Do the same for processes that report, and name them; the legend for it is RANK."""
    place = f"topk by (process) (1, max by (process, instance, rank) ({CHOSEN.select('torch_process_info')}))"
    return by_process(expr, *labels).then(f"{{}}\n* on (process) group_left (instance, rank) {place}")


def alerts_of_job() -> Expr:
    """Return the alerts about the job chosen that fire."""
    first, second = (alerts(**GROUP, **key) for key in _KEYS)
    return first.then(f"{{}} or {second}")
