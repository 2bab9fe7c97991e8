"""The recording rules. They aggregate processes to jobs, so that a restarted rank does not make a new alert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpugauge.artifacts.rules.promql import CLOCK, FAILING, HAS_JOB, JOB_LABELS, PROCESS_JOB, SEEN, Selectors
from gpugauge.base.duration import format_duration

LOST = "gpugauge:job_training_lost:ratio"
LOST_GPUS = "gpugauge:job_training_lost:gpus"
# Their sum in steps of HOURS_STEP seconds is the GPU time, from the start of a training.
HOURS_LOST = "gpugauge:job_training_lost_5m:gpus"
HOURS_HELD = "gpugauge:job_training_held_5m:gpus"
HOURS_STEP = 300
LOAD = "gpugauge:job_training_load:ratio"
LOW = "gpugauge:job_training_low:ratio"
ARMED = "gpugauge:job_training_armed:bool"
DOMINANT = "gpugauge:job_training_dominant_cause:ratio"
HELD = "gpugauge:job_training_held:gpus"
OUTSIDE = "gpugauge:job_training_outside:processes"
NOW = "gpugauge:job_training_now:processes"
ALIVE = "gpugauge:job_training_alive:bool"
PROBLEM = "gpugauge:job_problem:ratio"
PROGRAMS = "gpugauge:job_programs:processes"
DEVICES = "gpugauge:job_devices:info"
# What the processes report, and no more than what was lost in the same time allows.
REPORTED = "gpugauge:job_training_speedup_reported:ratio"
SPEEDUP = "gpugauge:job_training_speedup:ratio"
SPEEDUP_BOUND = "gpugauge:job_training_speedup_bound:ratio"
# With further matchers. A smaller bound is as good as none.
LEAST_SPEEDUP = f'({SPEEDUP_BOUND}{{{{{{}}bound="lower"}}}} >= 1.05)'
NEXT_LIMIT = "gpugauge:job_training_next_limit:info"
GAIN_TEXTS = "gpugauge:job_gain_texts:info"
PLACES = "gpugauge:job_places:info"
TEXTS = "gpugauge:job_texts:info"
# Labels with the gain without the largest cause, at least, and the limit that comes next.
GAIN_LABELS = ("speedup", "next")
TEXT_LABELS = ("instance", "nodes", "cause", *GAIN_LABELS)
# The bounds of a gain by their part of the metric's name, with the aggregation over the processes of a job.
_BOUNDS = {"lower": "min", "upper": "max"}
USER_LOST = "gpugauge:user_training_lost:gpus"
# Of trainings that are judged, by kind and namespace, for graphs of a large fleet over a day.
CAUSE_LOST = "gpugauge:cause_training_lost:gpus"
ALL_HELD = "gpugauge:training_held:gpus"
ANSWERING = "gpugauge:gpu_up:gpus"
IN_USE = "gpugauge:gpu_in_use:gpus"
JOB_USER = "gpugauge:job_user:info"
TRAINING = "gpugauge:process_training:bool"
DEVICE_BUSY = "gpugauge:gpu_busy:ratio"
# Share of the window that a job must spend in training steps for its load to be judged.
_MIN_TRAINING_SHARE = 0.5
# Without the hook: share of the window in which it must use its GPU. A process that is idle for longer is held_idle.
_MIN_USED_SHARE = 0.05
# Share of the GPU time from which the largest cause is recorded as the dominant one.
_MIN_DOMINANT_SHARE = 0.1


@dataclass(frozen=True)
class Recording:
    """A recording rule."""

    record: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the rule in the form of a Prometheus rule file."""
        return {"record": self.record, "expr": self.expr, **({"labels": dict(self.labels)} if self.labels else {})}


def gpu_hours(gpus: str, window: str) -> str:
    """Return the GPU hours in a window, of HOURS_LOST or HOURS_HELD."""
    return f"sum_over_time({gpus}[{window}:{format_duration(HOURS_STEP)}]) / {3600 // HOURS_STEP}"


def problem(name: str, expr: str) -> Recording:
    """Return the rule that records the jobs with a problem, which explains a low load."""
    return Recording(PROBLEM, expr, {"problem": name})


def alive(s: Selectors) -> str:
    """Return the jobs that have a process now, or had one lately on an exporter whose scrapes fail."""
    # A process has a series for every state, 0 or 1: reading one state touches an eleventh of them.
    return s.jobs_with(s.present("training_state", s.patience, state="training"))


def of_exporters(s: Selectors) -> list[Recording]:
    """Return the rules for the clock of each exporter, and for whether it can be scraped."""
    by = f"max by ({s.keys('instance')})"
    name = "gpugauge_snapshot_timestamp_seconds"
    # Sidecars are not among the targets in `up`.
    beside = f"{by} (last_over_time({s(name, s.patience)})) > bool 0"
    up = f"clamp_min({by} (avg_over_time({s.up(s.patience)})), 0.05)"
    return [
        Recording(CLOCK, f"{by} (last_over_time({s(name, s.memory)}))"),
        Recording(SEEN, f"{up}\nor {beside}"),
        Recording(FAILING, f"{by} (min_over_time({s.up(max(s.settle, 4 * s.scrape_interval))})) == 0"),
    ]


def of_owners(s: Selectors) -> list[Recording]:
    """Return the rules that map processes to jobs, and select the trainings; all rules about jobs read them."""
    return [*of_exporters(s), Recording(PROCESS_JOB, _process_job(s)), Recording(TRAINING, _training(s))]


def of_processes(s: Selectors) -> list[Recording]:
    """Return the rules for running jobs."""
    return [Recording(ALIVE, alive(s)), *_now(s)]


def gpus(s: Selectors, window: int, *cause: str) -> str:
    """Return the mean GPUs that each training held in a window, or lost by `cause`: the source of GPU times."""
    if cause:
        # Only causes above 0 are joined, and `unknown`, so that a job without losses has a load.
        name = "training_lost_seconds_total"
        seconds = f"({s.risen(name, window, cause='!unknown')} or increase({s(name, window, cause='unknown')}))"
    else:
        seconds = f"increase({s('training_gpu_held_seconds_total', window)})"
    # The same of an exporter and of those that came before it under another name of the pod.
    return f"(sum without (pod) ({seconds} {s.on_process('and', TRAINING)}) / {window})"


def of_jobs(s: Selectors) -> list[Recording]:
    """Return the rules for the GPU time that jobs hold and lose, and for whether their load is judged."""
    (held, lost), hours = (
        (s.by_job("sum", gpus(s, window)), s.by_job("sum", gpus(s, window, "cause"), "cause"))
        for window in (s.patience, s.lookback)
    )
    return [
        Recording(HELD, held),
        # > 0, because it is the denominator.
        Recording(LOST, f"{lost}\n/ on ({s.job}) group_left () ({HELD} > 0)"),
        Recording(LOST_GPUS, f"sum by ({s.job}) ({LOST})\n* on ({s.job}) {HELD}"),
        Recording(HOURS_HELD, hours[0]),
        Recording(HOURS_LOST, f"sum by ({s.job}) ({hours[1]})"),
        Recording(LOAD, f"clamp_min(1 - sum by ({s.job}) ({LOST}), 0)"),
        Recording(DOMINANT, f"topk by ({s.job}) (1, {LOST} >= {_MIN_DOMINANT_SHARE:g})"),
        *([Recording(OUTSIDE, _outside(s))] if s.training_matchers else []),
        Recording(ARMED, f"(\n{_armed(s)}\n) > bool 0"),
    ]


def of_use(s: Selectors) -> list[Recording]:
    """Return the rules for the places of jobs, and for the GPUs lost by user, in proportion to their processes."""
    labels, info = s.keys("process", *JOB_LABELS, "workload_user"), s("gpu_process_host_info", workload_job=HAS_JOB)
    processes = f"max by ({labels}) ({info}) {s.on_process('and', PROCESS_JOB)}"
    of_all = f"on ({s.job}) group_left () count by ({s.job}) ({processes})"
    share = f"count by ({s.job}, workload_user) ({processes})\n  / {of_all}"
    by_user = s.keys("workload_job_kind", "workload_namespace", "workload_user")
    by, held = s.keys("workload_job_kind", "workload_namespace"), f"{HELD} and on ({s.job}) ({ARMED} or {PROBLEM})"
    return [
        Recording(PROGRAMS, _programs(s)),
        Recording(DEVICES, _devices(s)),
        Recording(JOB_USER, _job_user(s)),
        *(_of_texts(s) if s.engine == "grafana" else []),
        Recording(USER_LOST, f"sum by ({by_user}) (\n  {share}\n  * on ({s.job}) group_left () {LOST_GPUS}\n)"),
        Recording(CAUSE_LOST, f"sum by ({by}, cause) ({LOST} * on ({s.job}) group_left () ({held}))"),
        Recording(ALL_HELD, f"sum by ({by}) ({held})"),
    ]


def of_gains(s: Selectors) -> list[Recording]:
    """Return the rules for what the steps of each job gain without each cause, its bounds, and the next limit."""
    cause = f"{s.job}, cause"
    # Where the gain of a process that the cause limits is not known, that of the job is not known either.
    limited = f"max by ({s.keys('process', 'cause')}) ({s('training_limited_by')} == 1)"
    # A job is as fast as its slowest process, so the smallest gain is that of the job.
    gain = s.by_job("min", f"({_mean(s)} or 0 * {limited})", "cause") + " > 0"
    after = s.by_job("sum", f"count_over_time({s('training_expected_speedup_info', s.patience)})", "cause", "next")
    known = f"\nand on ({cause}) {SPEEDUP}"
    # What was lost in the same time allows no more. Of a lower precision, only a usual gain of the kernels is lost.
    most = f'label_replace(1 / (1 - {LOST}{{cause!="precision_unused"}}), "of", "share", "", "")'

    def within(found: str) -> str:
        return f"min by ({cause}) ({found}\nor {most})"

    return [
        Recording(REPORTED, gain),
        Recording(SPEEDUP, f"{within(REPORTED)}\nand on ({cause}) {REPORTED}"),
        *(
            Recording(
                SPEEDUP_BOUND, within(s.by_job(operator, _mean(s, f"_{bound}"), "cause")) + known, {"bound": bound}
            )
            for bound, operator in _BOUNDS.items()
        ),
        Recording(NEXT_LIMIT, f"topk by ({cause}) (1, {after}) > bool 0{known}"),
        *([Recording(GAIN_TEXTS, _gain_texts(s))] if s.engine == "grafana" else []),
    ]


def _mean(s: Selectors, part: str = "") -> str:
    gain = s(f"training_expected_speedup{part}_ratio", s.patience)
    return f"max by ({s.keys('process', 'cause')}) (avg_over_time({gain}))"


def _gain_texts(s: Selectors) -> str:
    """Return 1 for each job, with the gain without its largest cause in labels."""
    largest = f"and on ({s.job}, cause) {DOMINANT}"
    speedup, limit = GAIN_LABELS
    least = f'count_values by ({s.job}) ("{speedup}", round({LEAST_SPEEDUP.format("")} {largest}, 0.1))'
    return f"{least}\n* on ({s.job}) group_left ({limit}) ({NEXT_LIMIT} {largest})"


def _of_texts(s: Selectors) -> list[Recording]:
    """Return the rules for what the texts of alerts for Grafana name; jobs without it have a series without labels."""
    nodes = f"count by ({s.job}, instance) ({PROGRAMS})"
    number = f'count_values by ({s.job}) ("nodes", count by ({s.job}) ({nodes}))'
    one, cause = f"topk by ({s.job}) (1, {nodes}) > bool 0", f"{DOMINANT} > bool 0"
    with_cause = f"{PLACES}\n* on ({s.job}) group_left (cause) ({cause})"
    with_gain = f"{with_cause}\n* on ({s.job}) group_left ({', '.join(GAIN_LABELS)}) {GAIN_TEXTS}"
    return [
        Recording(PLACES, f"{number}\n* on ({s.job}) group_left (instance) ({one})"),
        Recording(
            TEXTS,
            f"(({with_gain})\nor on ({s.job}) ({with_cause})\nor on ({s.job}) {PLACES}\n"
            f"or on ({s.job}) {JOB_USER})\n* on ({s.job}) group_left (workload_user) {JOB_USER}",
        ),
    ]


def _programs(s: Selectors) -> str:
    """Return the number of processes of each job by node, pod, command and user, for the texts of the alerts."""
    place = ("instance", "workload_pod", "workload_command", "workload_user")
    known = {"gpu_process_host_info": place, "gpu_process_info": place, "torch_process_info": place[:2]}
    last = (f"max by ({s.keys('process', *of)}) (last_over_time({s(name, s.lookback)}))" for name, of in known.items())
    return s.by_job("count", s.first(last), *place)


def _job_user(s: Selectors) -> str:
    """Return 1 for each job with its user, without one where that may change: in pods and containers."""
    of_one = 'workload_namespace="",workload_job_kind!~"pod|container|compose",workload_user!=""'
    seen = f"count_over_time({PROGRAMS}{{{of_one}}}[{format_duration(s.memory)}])"
    user = f"topk by ({s.job}) (1, sum by ({s.job}, workload_user) ({seen})) > bool 0"
    return f"{user}\nor on ({s.job}) max by ({s.job}) ({PROCESS_JOB})"


def _devices(s: Selectors) -> str:
    """Return 1 for each GPU on which a process of a job holds memory, with node and index; of a MIG device, its GPU."""
    device = s.keys("instance", "uuid")
    index = f"max by ({s.keys('instance', 'uuid', 'index')}) (last_over_time({s('gpu_info', s.lookback)}))"
    mig = f"max by ({s.keys('instance', 'uuid', 'parent_uuid')}) (last_over_time({s('gpu_mig_info', s.lookback)}))"
    # topk, because an index may have changed in the meantime.
    of_gpu = f"topk by ({device}) (1, {index})"
    renamed = f'label_replace({mig}, "mig", "$1", "uuid", "(.+)")'
    renamed = f'label_replace({renamed}, "uuid", "$1", "parent_uuid", "(.+)")'
    of_mig = f'label_replace({renamed} * on ({device}) group_left (index) {of_gpu}, "uuid", "$1", "mig", "(.+)")'
    indexes = f"topk by ({device}) (1, max by ({device}, index) (\n    {index} or\n    {of_mig}\n  ))"
    memory = f"last_over_time({s('gpu_process_memory_used_bytes', s.lookback)})"
    held = f"max by ({s.keys('process', 'instance', 'uuid')}) ({memory})"
    return (
        s.by_job("max", f"{held}\n  * on ({device}) group_left (index) {indexes}", "instance", "index") + " > bool -1"
    )


def _hooked(s: Selectors) -> str:
    return f"max_over_time({s('torch_process_info', s.patience)})"


def _now(s: Selectors) -> list[Recording]:
    """Return the rules for the number of processes of each job that train now, with the hook and without it."""
    name = "training_state"
    states = {"true": f"{s.present(name, state='training')} == 1"}
    if s.training_matchers:
        # Between its kernels such a process may count as held_idle.
        unhooked = f"{s.on_process('and', TRAINING)} {s.on_process('unless', _hooked(s))}"
        states["false"] = f"({s.present(name, state='~unknown|held_idle')} == 1) {unhooked}"
    return [Recording(NOW, s.by_job("count", expr), {"hook": hook}) for hook, expr in states.items()]


def _time(s: Selectors, seconds: str, hook: str) -> str:
    """Return the share of the window in which a process of each job is in a state: they may be many short ones."""
    mean = f'max by ({s.job}) (avg_over_time({NOW}{{hook="{hook}"}}[{format_duration(s.patience)}]))'
    return f"{s.by_job('sum', seconds)}\n/ on ({s.job}) {mean}"


def _outside(s: Selectors) -> str:
    """Return the number of the trainings of each job that do not use the hook, and use their GPU at times."""
    others = f"{s.on_process('and', TRAINING)} {s.on_process('unless', _hooked(s))}"

    def time(state: str) -> str:
        by = s.keys("process", "state")
        rates = s.seen(f"{s.risen('training_seconds_total', s.patience, state=state)} / {s.patience}")
        # The states of a process exclude each other, so their times add up.
        return f"sum by ({s.keys('process')}) (max by ({by}) ({rates})) {others}"

    number = f'round(avg_over_time({NOW}{{hook="false"}}[{format_duration(s.patience)}]))'
    judged = f"max by ({s.job}) ({number})"
    runs, used = _time(s, time("~unknown|held_idle"), "false"), _time(s, time("unknown"), "false")
    return f"{judged}{s.and_job(f'({runs} >= {_MIN_TRAINING_SHARE:g})')}{s.and_job(f'({used} >= {_MIN_USED_SHARE:g})')}"


def _armed(s: Selectors) -> str:
    """Return the jobs whose load is judged: running, old enough, and mostly in training steps."""
    time = _time(s, s.seen(s.rate("training_seconds_total", s.patience, state="training")), "true")
    found = _old(s, f"({time} >= {_MIN_TRAINING_SHARE:g})", "training_start_timestamp_seconds")
    if s.training_matchers:
        # The age of a process without the hook counts from its start, because its first step is not known.
        found = f"({found}\nor on ({s.job}) ({_old(s, OUTSIDE, 'gpu_process_start_timestamp_seconds')}))"
    return found + s.and_job(alive(s))


def _old(s: Selectors, trains: str, start: str) -> str:
    # The clock by which the start was measured may have been set back since.
    seen = f"count_over_time({s(start, s.keep_firing)} offset {format_duration(s.min_job_age)})"
    old = f"(min_over_time({s(start, s.memory)}) <= {s.clock(-s.min_job_age)} {s.on_process('or', seen)})"
    return trains + s.and_job(s.jobs_with(old))


def _training(s: Selectors) -> str:
    """Return 1 for each process with the hook, and those that the matchers select unless they are servers."""
    name = "gpu_process_host_info"
    hooked = s.by_process(_hooked(s))
    if not s.training_matchers:
        return hooked
    chosen = f"max_over_time({s.matched(name, s.training_matchers)}[{format_duration(s.patience)}])"
    serves = f"max_over_time({s(name, s.patience, workload_command='~' + s.serving)})"
    return f"{hooked}\nor ({s.by_process(chosen)}\n  {s.on_process('unless', serves)})"


def of_devices(s: Selectors) -> list[Recording]:
    """Return the rules about GPUs; the alerts about jobs and GPUs read them."""
    busy, observed = (
        f"sum by ({s.keys('uuid')}) ({s.rate(f'gpu_{kind}_seconds_total', s.patience, engine='gpu')})"
        for kind in ("busy", "observed")
    )
    by = f"sum by ({s.keys('job')})"
    used = f"({s('gpu_process_memory_used_bytes')} and on ({s.gpu}) {s('gpu_up')} == 1) > bool -1"
    return [
        Recording(DEVICE_BUSY, f"{busy}\n/ ({observed} > 0)"),
        # 0 where there is no GPU: the rules are loaded.
        Recording(ANSWERING, f"{by} ({s('gpu_up')})\nor 0 * {by} ({s('gpugauge_build_info')})"),
        Recording(IN_USE, f"{by} (max by ({s.keys('job', 'instance', 'uuid')}) ({used}))\nor 0 * {by} ({s('gpu_up')})"),
    ]


def _process_job(s: Selectors) -> str:
    """Return one job for each process: the one that it had for most of the time, so that a change adds no series."""
    process = s.keys("process")
    known = (
        f"sum by ({process}, {', '.join(JOB_LABELS)}) "
        f"(count_over_time({s(name, s.memory, s.job_matchers, workload_job=HAS_JOB)}))"
        for name in ("gpu_process_host_info", "gpu_process_info", "torch_process_info")
    )
    return f"topk by ({process}) (1, {s.first(known)}) > bool 0"
