"""The recording rules. They aggregate processes to jobs, so that a restarted rank does not make a new alert."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge import catalog
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.duration import format_duration

# The labels that identify a job. Alerts never carry the label `process`: it changes with every restart.
JOB = "workload_namespace, workload_kind, workload_job_id, workload_user"
PROCESS_JOB = "gpugauge:process_job:info"
LOST = "gpugauge:job_training_lost:ratio"
LOAD = "gpugauge:job_training_load:ratio"
ARMED = "gpugauge:job_training_armed:bool"
DOMINANT = "gpugauge:job_training_dominant_cause:ratio"
HELD = "gpugauge:job_training_held:gpus"
ALIVE = "gpugauge:job_training_alive:bool"
USER_LOST = "gpugauge:user_training_lost:gpus"
STALLED = "gpugauge:process_training_stalled:bool"
RANK_WORK = "gpugauge:rank_local_work:ratio"
DEVICE_BUSY = "gpugauge:gpu_busy:ratio"
# Share of the window that a job must spend in training steps for its load to be judged.
_MIN_TRAINING_SHARE = 0.5
# Share of the GPU time from which the largest cause is recorded as the dominant one.
_MIN_DOMINANT_SHARE = 0.1


class UnknownMetricError(ValueError):
    """A query names a metric or label that is not in the catalogue."""


@dataclass(frozen=True)
class Recording:
    """A recording rule."""

    record: str
    expr: str

    def as_dict(self) -> dict[str, object]:
        """Return the rule in the form of a Prometheus rule file."""
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True)
class Selectors:
    """Writer of selectors; every name and label in them must be in the catalogue."""

    parameters: Parameters

    def __call__(self, name: str, window: int | None = None, **labels: str) -> str:
        """Return `name{label="value",…}[window]`.

        A value that begins with ~ is a regular expression, one that begins with ! is negated.
        Raises UnknownMetricError.
        """
        row = next((row for row in catalog.metrics() if row.name == name), None)
        unknown = labels.keys() - set(row.labels) if row else {name}
        if unknown:
            raise UnknownMetricError(f"{name}: {', '.join(sorted(unknown))} is not in the catalogue")
        signs = {"~": "=~", "!": "!="}
        matchers = [f'{k}{signs.get(v[:1], "=")}"{v.lstrip("~!")}"' for k, v in labels.items()]
        text = ",".join([*matchers, *filter(None, [self.parameters.matchers])])
        return name + (f"{{{text}}}" if text else "") + (f"[{format_duration(window)}]" if window else "")

    def up(self) -> str:
        """Return the selector of `up`, which Prometheus records for each exporter."""
        return f"up{{{','.join(filter(None, [self.parameters.up_matchers, self.parameters.matchers]))}}}"


def by_process(expr: str) -> str:
    """Aggregate an expression to one series for each process, without the labels of the scrape."""
    return f"max by (process) ({expr})"


def by_job(operator: str, expr: str, *more: str) -> str:
    """Aggregate an expression that has one series for each process to jobs and the labels `more`."""
    return (
        f"{operator} by ({', '.join([JOB, *more])}) (\n  {expr}\n  * on (process) group_left ({JOB}) {PROCESS_JOB}\n)"
    )


def jobs_with(expr: str) -> str:
    """Return 1 for each job with a process in the result of the expression; `and` costs less than a join."""
    return f"max by ({JOB}) (\n  {PROCESS_JOB} and on (process) {expr}\n)"


def alive(p: Parameters) -> str:
    """Return the jobs that have a process now, so that no alert begins to fire after the end of its job."""
    # A process has a series for every state, 0 or 1: reading one state touches an eleventh of them.
    return jobs_with(Selectors(p)("training_state", state="training"))


def of_owners(p: Parameters) -> list[Recording]:
    """Return the rule that maps processes to jobs; all rules about jobs read it."""
    return [Recording(PROCESS_JOB, _process_job(p))]


def of_processes(p: Parameters) -> list[Recording]:
    """Return the rules for running jobs, the work of their ranks, and stalled processes."""
    stalled = by_process(f"max_over_time({Selectors(p)('training_state', p.lookback, state='stalled')}) == 1")
    return [
        Recording(ALIVE, alive(p)),
        Recording(RANK_WORK, _rank_work(p)),
        Recording(STALLED, stalled),
    ]


def of_jobs(p: Parameters) -> list[Recording]:
    """Return the rules for the GPU time that jobs hold and lose, and for whether their load is judged."""
    s = Selectors(p)
    # Most causes are 0 for most processes: only the others are joined. `unknown` is kept at 0, too, so that a job
    # without losses has a load.
    known, unknown = (
        f"rate({s('training_lost_seconds_total', p.patience, cause=cause)})" for cause in ("!unknown", "unknown")
    )
    lost = by_job("sum", f"({known} > 0 or {unknown})", "cause")
    held = by_job("sum", f"rate({s('training_gpu_held_seconds_total', p.patience)})")
    return [
        Recording(HELD, held),
        # > 0, because it is the denominator.
        Recording(LOST, f"{lost}\n/ on ({JOB}) group_left () ({HELD} > 0)"),
        Recording(LOAD, f"clamp_min(1 - sum by ({JOB}) ({LOST}), 0)"),
        Recording(DOMINANT, f"topk by ({JOB}) (1, {LOST} >= {_MIN_DOMINANT_SHARE:g})"),
        Recording(ARMED, _armed(p)),
    ]


def of_use(p: Parameters) -> list[Recording]:
    """Return the rule for the GPUs lost by user; users share a job in proportion to their processes."""
    job = "workload_namespace, workload_kind, workload_job_id"
    user = "workload_namespace, workload_kind, workload_user"
    gpus = f"* on ({JOB}) group_left () {HELD}"
    processes = Selectors(p)("gpu_process_host_info", workload_job_id="!")
    share = f"count by ({JOB}) ({processes})\n  / on ({job}) group_left () count by ({job}) ({processes})"
    of_job = f'sum by ({job}) ({LOST}{{workload_job_id!=""}} {gpus})'
    of_user = f'{LOST}{{workload_job_id=""}} {gpus}'
    shares = f"{share}\n  * on ({job}) group_left () {of_job}\n  or {of_user}"
    return [Recording(USER_LOST, f"sum by ({user}) (\n  {shares}\n)")]


def _armed(p: Parameters) -> str:
    """Return the jobs whose load is judged: running, old enough, and mostly in training steps."""
    s = Selectors(p)
    trains = f"rate({s('training_seconds_total', p.patience, state='training')}) >= {_MIN_TRAINING_SHARE:g}"
    start = f"min_over_time({s('training_start_timestamp_seconds', p.memory)})"
    reported = _judged(p, trains, start)
    if not p.training_matchers:
        return reported
    # Trainings without the hook, as the operator's matchers select them; their age counts from the process's start.
    labelled = Selectors(p.model_copy(update={"matchers": ",".join(filter(None, [p.training_matchers, p.matchers]))}))
    chosen = f"max_over_time({labelled('gpu_process_host_info', p.patience)})"
    hooked = f"max_over_time({s('torch_process_info', p.patience)})"
    unknown = f"rate({s('training_seconds_total', p.patience, state='unknown')})"
    outside = f"({unknown} >= {_MIN_TRAINING_SHARE:g} and on (process) {chosen} unless on (process) {hooked})"
    process_start = f"min_over_time({s('gpu_process_start_timestamp_seconds', p.memory)})"
    return f"{reported}\nor on ({JOB}) (\n{_judged(p, outside, process_start)}\n)"


def _judged(p: Parameters, trains: str, start: str) -> str:
    old = jobs_with(f"{start} <= time() - {p.min_job_age}")
    return f"{jobs_with(trains)}\nand on ({JOB}) {old}\nand on ({JOB}) {alive(p)}"


def _rank_work(p: Parameters) -> str:
    """Return the share of its time that each rank computes itself, with its instance, rank, run and world size."""
    s = Selectors(p)
    work = f"max by (process, instance) (rate({s('torch_local_work_seconds_total', p.patience)}))"
    ranks = f"sum by (process, rank, world_size, run_id) (count_over_time({s('torch_process_info', p.patience)}))"
    rank = f"topk by (process) (1, {ranks}) > bool 0"
    return (
        f"{work}\n* on (process) group_left (rank, world_size, run_id) ({rank})\n"
        f"* on (process) group_left ({JOB}) {PROCESS_JOB}"
    )


def of_devices(p: Parameters) -> list[Recording]:
    """Return the rules about GPUs; the alerts about jobs and GPUs read them."""
    s = Selectors(p)
    busy, observed = (
        f"max by (uuid) (rate({s(f'gpu_{kind}_seconds_total', p.patience, engine='gpu')}))"
        for kind in ("busy", "observed")
    )
    return [Recording(DEVICE_BUSY, f"{busy}\n/ ({observed} > 0)")]


def _process_job(p: Parameters) -> str:
    """Return one job for each process: the one that it had for most of the time, so that a change adds no series.

    A process that only the hook reports (no /proc) has its run as its job, or else the instance of its exporter.
    """
    s = Selectors(p)
    known = [
        f"sum by (process, {JOB}) (count_over_time({s(name, p.memory)}))"
        for name in ("gpu_process_host_info", "gpu_process_info")
    ]
    hook = f"sum by (process, instance, run_id) (count_over_time({s('torch_process_info', p.memory)}))"
    by_run = (
        f'label_replace(label_replace(label_replace({hook},\n  "workload_kind", "run", "", ""), '
        f'"workload_job_id", "$1", "instance", "(.*)"), "workload_job_id", "$1", "run_id", "(.+)")'
    )
    first = f"{known[0]}\nor on (process) {known[1]}\nor on (process) {by_run}"
    one = f"topk by (process) (1, sum by (process, {JOB}) (\n{first}\n)) > bool 0"
    # The user identifies work without a job id only.
    return f'label_replace(\n{one},\n"workload_user", "", "workload_job_id", ".+")'
