"""The recording rules: from processes to jobs, so that a restarted rank is no new alert."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge import catalog
from gpugauge.artifacts.rules.options import Parameters, duration

# Who a job is. A process label never gets into an alert: it changes with every restart.
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
_TRAINING_SHARE = 0.5
# Share of the GPU time that a cause must take to be called the main one.
_MAIN_SHARE = 0.1


class UnknownMetricError(ValueError):
    """A rule names a metric or label that the catalogue does not have."""


@dataclass(frozen=True)
class Recording:
    """A recording rule."""

    record: str
    expr: str

    def as_dict(self) -> dict[str, object]:
        """Return the rule as Prometheus reads it."""
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True)
class Selectors:
    """Writes selectors; every name and label in them is looked up in the catalogue."""

    parameters: Parameters

    def __call__(self, name: str, window: int | None = None, **labels: str) -> str:
        """Return `name{label="value",…}[window]`; a value that begins with ~ is a regular expression,
        one with ! is what must not be.
        """
        row = next((row for row in catalog.metrics() if row.name == name), None)
        unknown = labels.keys() - set(row.labels) if row else {name}
        if unknown:
            raise UnknownMetricError(f"{name}: {', '.join(sorted(unknown))} is not in the catalogue")
        signs = {"~": "=~", "!": "!="}
        matchers = [f'{k}{signs.get(v[:1], "=")}"{v.lstrip("~!")}"' for k, v in labels.items()]
        text = ",".join([*matchers, *filter(None, [self.parameters.matchers])])
        return name + (f"{{{text}}}" if text else "") + (f"[{duration(window)}]" if window else "")

    def up(self) -> str:
        """Return the selector of Prometheus' own series about the exporters."""
        return f"up{{{','.join(filter(None, [self.parameters.up_matchers, self.parameters.matchers]))}}}"


def by_process(expr: str) -> str:
    """Leave one series for each process, whatever else the scrape put on it."""
    return f"max by (process) ({expr})"


def by_job(operator: str, expr: str, *more: str) -> str:
    """Aggregate an expression by process to jobs, and the further labels given."""
    return (
        f"{operator} by ({', '.join([JOB, *more])}) (\n  {expr}\n  * on (process) group_left ({JOB}) {PROCESS_JOB}\n)"
    )


def jobs_with(expr: str) -> str:
    """Return 1 for each job with a process that the expression finds, whatever its value: lighter than a join."""
    return f"max by ({JOB}) (\n  {PROCESS_JOB} and on (process) {expr}\n)"


def alive(p: Parameters) -> str:
    """Return the jobs with a process that is there now: with its end, nothing may begin to fire."""
    # Every state is there, as 0 or 1: one of them tells, for an eleventh of the series.
    return jobs_with(Selectors(p)("training_state", state="training"))


def of_owners(p: Parameters) -> list[Recording]:
    """Return the rule that tells whose each process is; all about jobs builds on it."""
    return [Recording(PROCESS_JOB, _process_job(p))]


def of_processes(p: Parameters) -> list[Recording]:
    """Return the rules that tell which jobs are there, and how their processes go on."""
    stalled = by_process(f"max_over_time({Selectors(p)('training_state', p.lookback, state='stalled')}) == 1")
    return [
        Recording(ALIVE, alive(p)),
        Recording(RANK_WORK, _rank_work(p)),
        Recording(STALLED, stalled),
    ]


def of_jobs(p: Parameters) -> list[Recording]:
    """Return the rules about what jobs hold and lose, and whether it may be judged, in this order."""
    s = Selectors(p)
    # Most causes take nothing from most processes: of a whole fleet only those that do are joined. What is unknown
    # stays at 0 too, so that a job that loses nothing has a load.
    known, unknown = (
        f"rate({s('training_lost_seconds_total', p.patience, cause=cause)})" for cause in ("!unknown", "unknown")
    )
    lost = by_job("sum", f"({known} > 0 or {unknown})", "cause")
    held = by_job("sum", f"rate({s('training_gpu_held_seconds_total', p.patience)})")
    return [
        Recording(HELD, held),
        # A held time of nothing is no denominator.
        Recording(LOST, f"{lost}\n/ on ({JOB}) group_left () ({HELD} > 0)"),
        Recording(LOAD, f"clamp_min(1 - sum by ({JOB}) ({LOST}), 0)"),
        Recording(DOMINANT, f"topk by ({JOB}) (1, {LOST} >= {_MAIN_SHARE:g})"),
        Recording(ARMED, _armed(p)),
    ]


def of_use(p: Parameters) -> list[Recording]:
    """Return who loses how many GPUs; a job of several users is shared out in the proportion of their processes."""
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
    """Find the jobs whose load may be judged: they train for long enough, mostly in training steps, and are there."""
    s = Selectors(p)
    trains = f"rate({s('training_seconds_total', p.patience, state='training')}) >= {_TRAINING_SHARE:g}"
    start = f"min_over_time({s('training_start_timestamp_seconds', p.memory)})"
    told = _judged(p, trains, start)
    if not p.training_matchers:
        return told
    # Without the hook: the operator says which processes are trainings, and they are as old as they are.
    labelled = Selectors(p.model_copy(update={"matchers": ",".join(filter(None, [p.training_matchers, p.matchers]))}))
    chosen = f"max_over_time({labelled('gpu_process_host_info', p.patience)})"
    hooked = f"max_over_time({s('torch_process_info', p.patience)})"
    unknown = f"rate({s('training_seconds_total', p.patience, state='unknown')})"
    outside = f"({unknown} >= {_TRAINING_SHARE:g} and on (process) {chosen} unless on (process) {hooked})"
    began = f"min_over_time({s('gpu_process_start_timestamp_seconds', p.memory)})"
    return f"{told}\nor on ({JOB}) (\n{_judged(p, outside, began)}\n)"


def _judged(p: Parameters, trains: str, start: str) -> str:
    old = jobs_with(f"{start} <= time() - {p.min_job_age}")
    return f"{jobs_with(trains)}\nand on ({JOB}) {old}\nand on ({JOB}) {alive(p)}"


def _rank_work(p: Parameters) -> str:
    """Give the share of its time that each rank works itself; with its place, and what tells its run from others."""
    s = Selectors(p)
    work = f"max by (process, instance) (rate({s('torch_local_work_seconds_total', p.patience)}))"
    ranks = f"sum by (process, rank, world_size, run_id) (count_over_time({s('torch_process_info', p.patience)}))"
    rank = f"topk by (process) (1, {ranks}) > bool 0"
    return (
        f"{work}\n* on (process) group_left (rank, world_size, run_id) ({rank})\n"
        f"* on (process) group_left ({JOB}) {PROCESS_JOB}"
    )


def of_devices(p: Parameters) -> list[Recording]:
    """Return the rules about GPUs that alerts about jobs and GPUs build on."""
    s = Selectors(p)
    busy, observed = (
        f"max by (uuid) (rate({s(f'gpu_{what}_seconds_total', p.patience, engine='gpu')}))"
        for what in ("busy", "observed")
    )
    return [Recording(DEVICE_BUSY, f"{busy}\n/ ({observed} > 0)")]


def _process_job(p: Parameters) -> str:
    """Give each process one job: what it was called for most of the time, so that a change never doubles it.

    What only the hook knows, without /proc, belongs to its run, or to the exporter that stands beside it.
    """
    s = Selectors(p)
    known = [
        f"sum by (process, {JOB}) (count_over_time({s(name, p.memory)}))"
        for name in ("gpu_process_host_info", "gpu_process_info")
    ]
    hook = f"sum by (process, instance, run_id) (count_over_time({s('torch_process_info', p.memory)}))"
    beside = (
        f'label_replace(label_replace(label_replace({hook},\n  "workload_kind", "run", "", ""), '
        f'"workload_job_id", "$1", "instance", "(.*)"), "workload_job_id", "$1", "run_id", "(.+)")'
    )
    first = f"{known[0]}\nor on (process) {known[1]}\nor on (process) {beside}"
    one = f"topk by (process) (1, sum by (process, {JOB}) (\n{first}\n)) > bool 0"
    # Where there is a job, the user is no part of its identity.
    return f'label_replace(\n{one},\n"workload_user", "", "workload_job_id", ".+")'
