"""Alerts about jobs: their progress, and how they use the GPUs that they hold. A job has one of them at most."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.load import CPU_CAUSES, is_low
from gpugauge.artifacts.rules.promql import HAS_JOB, Selectors
from gpugauge.artifacts.rules.ranks import RANK_BEHIND, RANK_EXCUSED, SLOW, STALLED
from gpugauge.artifacts.rules.recording import PROBLEM, Recording, problem
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration
from gpugauge.base.serving import IDLE_USE

STANDS = "gpugauge:job_stalled:ratio"


def of_processes(s: Selectors) -> list[Alert]:
    """Return the alerts about the progress of the processes of jobs."""
    t = Texts(s)
    # A low load has its own alert, which names the rank, too.
    slow = f"max by ({s.job}) ({SLOW})" + s.settled(SLOW) + s.unless_job(is_low(s))
    return [
        Alert(
            "TrainingStalled",
            STANDS + s.unless_job(RANK_BEHIND),
            f"Training {t.job()} makes no progress{t.nodes(' on ')}",
            f"No step or batch for more than {format_duration(s.stall_patience)}; of a job without the hook, its GPUs "
            "have worked and now only wait, at a low power. On the node, "
            f"{t.stack()} shows where each rank is, `py-spy dump --pid PID` where any process is. If the job cannot "
            f"continue, end it, and start it from its last checkpoint.{t.places()}",
            s.stall_patience,
            f"a training makes no step and takes no batch for {format_duration(s.stall_patience)}",
        ),
        Alert(
            "TrainingRankBehind",
            f"({STANDS}{s.and_job(RANK_BEHIND)})\nor ({slow})",
            f"A rank of training {t.job()} holds the others up{t.nodes(', on ')}",
            f"{t.behind()}On the node, {t.stack()} shows where each rank is that makes no progress, and `gpugauge "
            f"status` what limits it.{t.places()}",
            s.stall_patience,
            f"a training makes no step for {format_duration(s.stall_patience)}, and its ranks wait for one of them; or "
            f"a rank works more than {s.straggler_above:g} times as long as the median rank, "
            f"{format_duration(s.patience + s.settle)}",
        ),
    ]


def of_use(s: Selectors) -> list[Alert]:
    """Return the alerts about how jobs use the GPUs that they hold, were allocated or could use."""
    t = Texts(s)
    return [
        Alert(
            "GpuHeldIdle",
            _lasting(s, "held_idle"),
            f"{t.job()} holds GPUs without using them{t.nodes(' on ')}",
            f"Its GPUs were idle for {t.share()} of the last {format_duration(s.idle_patience)}. Ask its owner to "
            "release them: what it has in memory, such as the state of a notebook, is lost when it ends. `gpugauge "
            f"status` on the node has pid and memory.{t.places()}",
            s.settle,
            f"a process holds GPUs and does not use them for {format_duration(s.idle_patience)}",
        ),
        Alert(
            "TrainingOnCpu",
            _lasting(s, "on_cpu"),
            f"Training {t.job()} runs on the CPU of a machine with a GPU{t.nodes(': ')}",
            f"It was on the CPU for {t.share()} of the last {format_duration(s.patience)}. `gpugauge doctor PID` on "
            f"the machine says why.{t.places()}",
            s.settle,
            f"a training runs on the CPU of a machine with a GPU, {format_duration(s.patience)}",
        ),
        Alert(
            "TorchCpuBuildBusy",
            _cpu_builds(s),
            f"{t.job()} computes with a CPU build of PyTorch on a machine with GPUs{t.nodes(': ')}",
            f"{t.value()} CPUs were busy for {format_duration(s.idle_patience)}. If it is a training, install a build "
            f"of PyTorch for its GPUs.{t.places()}",
            s.idle_patience,
            f"a CPU build of PyTorch computes for {format_duration(s.idle_patience)} on a machine with GPUs",
            severity="info",
        ),
        Alert(
            "TrainingOutOfMemory",
            _found(s, "out_of_memory"),
            f"Training {t.job()} ran out of GPU memory{t.nodes(' on ')}",
            f"{t.value(digits=0)} out-of-memory errors in {format_duration(s.patience)}, caught ones included. Use a "
            f"smaller batch, or activation checkpointing.{t.places()}",
            when=f"torch reports an out-of-memory error, {format_duration(s.patience)}",
        ),
        Alert(
            "AllocatedGpuUnused",
            _unused(s),
            f"{t.job()} does not use all GPUs that it was allocated",
            f"{t.value(digits=0)} of its GPUs were idle for {format_duration(s.idle_patience)}. Request fewer, or use "
            f"them.{t.places(allocated=True)}",
            when=f"a GPU is allocated to a job and idle for {format_duration(s.idle_patience)}",
            described=False,
            severity="info",
        ),
    ]


def stands(s: Selectors) -> list[Recording]:
    """Return the rule for the jobs that make no progress, with the share of the time, which two alerts read."""
    alone = f"({_only(s, 'stalled', s.stall_patience, 0.5)} {s.on_process('unless', RANK_EXCUSED)})"
    return [Recording(STANDS, s.by_job("max", alone))]


def problems(s: Selectors) -> list[Recording]:
    """Return the rules for the problems that explain a low load; those of a job that stalls are not repeated."""
    return [problem("held_idle", _idle_jobs(s)), problem("on_cpu", _cpu_jobs(s)), problem("out_of_memory", _ooms(s))]


def _found(s: Selectors, name: str) -> str:
    return f'max by ({s.job}) ({PROBLEM}{{problem="{name}"}})'


def _lasting(s: Selectors, name: str) -> str:
    return _found(s, name) + s.settled(f'{PROBLEM}{{problem="{name}"}}')


def _only(s: Selectors, state: str, window: int, known: float) -> str:
    """Return the living processes that were in one state for nearly all of a window, of the time that was observed."""
    name = "training_seconds_total"
    process = s.keys("process")
    # Sums, because two exporters, one after the other, share a window; two servers may have the series of each.
    found, observed = s.risen(name, window, state=state), s.risen(name, window)
    seen = f"max by ({s.keys('process', 'instance', 'state')}) ({s.seen(f'{observed} / {window}')})"
    enough = f"sum by ({process}) ({seen}) >= {known:g}"
    share = f"sum by ({process}) ({found}) / sum by ({process}) ({observed}) >= {1 - IDLE_USE:g}"
    alive = s.on_process("and", s.present("training_state", s.patience, state=state))
    return f"({share} {s.on_process('and', enough)} {alive} {s.before(name, window, state=state)})"


def _not_stalled(s: Selectors) -> str:
    return s.unless_job(s.jobs_with(STALLED))


def _idle_jobs(s: Selectors) -> str:
    # A process that uses its GPU for 5 % of the window is not idle.
    return s.by_job("max", _only(s, "held_idle", s.idle_patience, 0.5)) + _not_stalled(s)


def _cpu_jobs(s: Selectors) -> str:
    # The exporter reports these causes only on hosts with a GPU.
    on_cpu = s.jobs_with(f"max_over_time({s('training_limited_by', s.patience, cause=CPU_CAUSES)})")
    share = s.seen(s.rate("training_seconds_total", s.patience, state="training_on_cpu"))
    # increase() extrapolates, so that the share of a short window may be above 1.
    return s.by_job("max", f"(clamp_max({share}, 1) >= 0.8)") + s.and_job(on_cpu) + _not_stalled(s)


def _ooms(s: Selectors) -> str:
    name = "torch_memory_ooms_total"
    before = f"count_over_time({s(name, 3600)} offset {format_duration(s.patience)})"
    # The first value of a new series, which increase() does not count. That of an old process is rather new to
    # Prometheus only, and its errors may be days old.
    start = f"max_over_time({s('gpu_process_start_timestamp_seconds', s.patience)})"
    old = s.on_process("unless", f"({start} < {s.clock(-s.memory)})")
    first = f"{s.last(name)} > 0 {s.on_process('unless', before)} {old}"
    return s.by_job("sum", f"increase({s(name, s.patience)}) > 0 or ({first})")


def _cpu_builds(s: Selectors) -> str:
    # Each process once, and only on machines with a GPU that answers.
    build = f"max_over_time({s('gpu_process_host_info', s.patience, torch_build='cpu')})"
    cpu_build = f"({build} and on ({s.keys('instance')}) max_over_time({s('gpu_up', s.patience)}) == 1)"
    name = "gpu_process_cpu_seconds_total"
    old = s.before(name, s.idle_patience, part="process")
    cpus = s.rate(name, s.idle_patience, part="process")
    busy = s.by_job("sum", f"{cpus} {s.on_process('and', cpu_build)} {old}")
    hooked = s.jobs_with(f"max_over_time({s('torch_process_info', s.patience)})")
    return f"{busy} >= 1" + s.unless_job(f"({hooked})") + s.unless_job(PROBLEM) + s.unless_job(is_low(s))


def _unused(s: Selectors) -> str:
    uuid, name = s.keys("uuid"), "gpu_allocation_info"
    # The GPU was allocated for the whole window, too.
    busy, observed = (
        s.rate(f"gpu_{kind}_seconds_total", s.idle_patience, engine="gpu") for kind in ("busy", "observed")
    )
    idle = (
        f"and on ({uuid}) (sum by ({uuid}) ({busy}) / sum by ({uuid}) ({observed}) < 0.01) "
        f"and on ({uuid}) sum by ({uuid}) (max by ({s.gpu}) ({s.seen(observed)})) >= 0.5"
    )
    # The job of a pod is known once one of its processes was seen.
    of_job = f"{s.job}, workload_user"
    allocated = "\n  or ".join(
        f"max by ({owner}, uuid) ({s.last(name, s.job_matchers, **labels)})\n"
        f"  and on ({owner}, uuid) {s.at_begin(name, s.idle_patience, **labels)}"
        for owner, labels in (
            (of_job, {"workload_job": HAS_JOB}),
            (s.keys("workload_namespace", "workload_pod"), {"workload_job": "", "workload_pod": "!"}),
        )
    )
    unused = f"count by ({of_job}, workload_pod) (\n  ({allocated})\n  {idle}\n)"
    return unused + s.unless_job(PROBLEM) + s.unless_job(is_low(s))
