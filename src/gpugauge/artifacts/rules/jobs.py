"""Alerts about jobs: their progress, and how they use the GPUs that they hold. A job has one of them at most."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.load import CPU_CAUSES, is_low, of_ranks
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import HAS_JOB, Selectors
from gpugauge.artifacts.rules.recording import ALIVE, PROBLEM, STALLED, Recording, problem
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration


def of_processes(p: Parameters) -> list[Alert]:
    """Return the alerts about the progress of the processes of jobs."""
    return [_stalled(p), *of_ranks(p)]


def of_use(p: Parameters) -> list[Alert]:
    """Return the alerts about how jobs use the GPUs that they hold, were allocated or could use."""
    return [_idle(p), *_on_cpu(p), _memory(p), _unused(p)]


def problems(p: Parameters) -> list[Recording]:
    """Return the rules for the problems that explain a low load; those of a job that stalls are not repeated."""
    return [problem("held_idle", _idle_jobs(p)), problem("on_cpu", _cpu_jobs(p)), problem("out_of_memory", _ooms(p))]


def _found(p: Parameters, name: str) -> str:
    return f'max by ({Selectors(p).job}) ({PROBLEM}{{problem="{name}"}})'


def _lasting(p: Parameters, name: str) -> str:
    return _found(p, name) + Selectors(p).settled(f'{PROBLEM}{{problem="{name}"}}')


def _only(p: Parameters, state: str, window: int, known: float) -> str:
    """Return the processes that were in one state for nearly all of a window. Relative to the observed time, so that a
    restart of the exporter does not count as another state; a process that is younger than the window is left out.
    """
    s, name = Selectors(p), "training_seconds_total"
    process = s.keys("process")
    # Sums, because two exporters, one after the other, share a window.
    found = f"sum by ({process}) ({s.rate(name, window, state=state)})"
    observed, seen = s.rate(name, window), s.seen(s.rate(name, window))
    enough = f"sum by ({process}) ({seen}) >= {known:g}"
    share = f"{found} / (sum by ({process}) ({observed}) > 0) >= 0.95"
    return f"({share} {s.on_process('and', enough)} {s.before(name, window, state=state)})"


def _stalled(p: Parameters) -> Alert:
    s, t = Selectors(p), Texts(p)
    return Alert(
        "TrainingStalled",
        s.by_job("max", _only(p, "stalled", p.stall_patience, 0.5)) + s.and_job(ALIVE),
        "warning",
        f"Training {t.job()} makes no progress{t.nodes(' on ')}",
        f"No step or batch for more than {format_duration(p.stall_patience)}. If its GPUs are busy, a collective "
        f"probably waits for a rank that is gone.{t.places()}",
        p.stall_patience,
        "job",
        f"a training makes no step and takes no batch for {format_duration(p.stall_patience)}",
    )


def _not_stalled(p: Parameters) -> str:
    s = Selectors(p)
    return s.unless_job(s.jobs_with(STALLED))


def _idle_jobs(p: Parameters) -> str:
    s = Selectors(p)
    # A process that uses its GPU for 5 % of the window is not idle.
    return s.by_job("max", _only(p, "held_idle", p.idle_patience, 0.5)) + _not_stalled(p)


def _idle(p: Parameters) -> Alert:
    t = Texts(p)
    return Alert(
        "GpuHeldIdle",
        _lasting(p, "held_idle"),
        "warning",
        f"{t.job()} holds GPUs without using them{t.nodes(' on ')}",
        f"Idle for {t.share()} of the last {format_duration(p.idle_patience)}.{t.places()}",
        p.settle,
        "job",
        f"a process holds GPUs and does not use them for {format_duration(p.idle_patience)}",
    )


def _cpu_jobs(p: Parameters) -> str:
    s = Selectors(p)
    # The exporter reports these causes only on hosts with a GPU.
    on_cpu = s.jobs_with(f"max_over_time({s('training_limited_by', p.patience, cause=CPU_CAUSES)})")
    share = s.by_job("max", f"({s.seen(s.rate('training_seconds_total', p.patience, state='training_on_cpu'))} >= 0.8)")
    return share + s.and_job(on_cpu) + _not_stalled(p)


def _on_cpu(p: Parameters) -> list[Alert]:
    s, t = Selectors(p), Texts(p)
    # Each process once, and only on machines with a GPU that answers.
    build = f"max_over_time({s('gpu_process_host_info', p.patience, torch_build='cpu')})"
    cpu_build = f"({build} and on ({s.keys('instance')}) max_over_time({s('gpu_up', p.patience)}) == 1)"
    name = "gpu_process_cpu_seconds_total"
    old = s.before(name, p.idle_patience, part="process")
    cpus = s.rate(name, p.idle_patience, part="process")
    busy = s.by_job("sum", f"{cpus} {s.on_process('and', cpu_build)} {old}")
    hooked = s.jobs_with(f"max_over_time({s('torch_process_info', p.patience)})")
    return [
        Alert(
            "TrainingOnCpu",
            _lasting(p, "on_cpu"),
            "warning",
            f"Training {t.job()} runs on the CPU of a machine with a GPU{t.nodes(': ')}",
            f"On the CPU for {t.share()} of the last {format_duration(p.patience)}.{t.places()}",
            p.settle,
            "job",
            f"a training runs on the CPU of a machine with a GPU, {format_duration(p.patience)}",
        ),
        Alert(
            "TorchCpuBuildBusy",
            f"{busy} >= 1" + s.unless_job(f"({hooked})") + s.unless_job(PROBLEM) + s.unless_job(is_low(p)),
            "info",
            f"{t.job()} computes with a CPU build of PyTorch on a machine with GPUs{t.nodes(': ')}",
            f"{t.value()} CPUs busy for {format_duration(p.idle_patience)}, perhaps no training.{t.places()}",
            p.idle_patience,
            "job",
            f"a CPU build of PyTorch computes for {format_duration(p.idle_patience)} on a machine with GPUs",
        ),
    ]


def _ooms(p: Parameters) -> str:
    s = Selectors(p)
    name = "torch_memory_ooms_total"
    before = f"count_over_time({s(name, 3600)} offset {format_duration(p.patience)})"
    # The first value of a new series, which increase() does not count. That of an old process is rather new to
    # Prometheus only, and its errors may be days old.
    start = f"max_over_time({s('gpu_process_start_timestamp_seconds', p.patience)})"
    old = s.on_process("unless", f"({start} < {s.clock(-p.memory)})")
    first = f"{s.last(name)} > 0 {s.on_process('unless', before)} {old}"
    return s.by_job("sum", f"increase({s(name, p.patience)}) > 0 or ({first})")


def _memory(p: Parameters) -> Alert:
    t = Texts(p)
    return Alert(
        "TrainingOutOfMemory",
        _found(p, "out_of_memory"),
        "warning",
        f"Training {t.job()} ran out of GPU memory{t.nodes(' on ')}",
        f"{t.value(digits=0)} out-of-memory errors in {format_duration(p.patience)}, caught ones included.{t.places()}",
        about="job",
        when=f"torch reports an out-of-memory error, {format_duration(p.patience)}",
    )


def _unused(p: Parameters) -> Alert:
    s, t = Selectors(p), Texts(p)
    uuid, name = s.keys("uuid"), "gpu_allocation_info"
    # The GPU was allocated for the whole window, too.
    busy, observed = (
        s.rate(f"gpu_{kind}_seconds_total", p.idle_patience, engine="gpu") for kind in ("busy", "observed")
    )
    idle = (
        f"and on ({uuid}) (sum by ({uuid}) ({busy}) / sum by ({uuid}) ({observed}) < 0.01) "
        f"and on ({uuid}) sum by ({uuid}) ({s.seen(observed)}) >= 0.5"
    )
    # The job of a pod is known once one of its processes was seen.
    pod = s.keys("workload_namespace", "workload_pod")
    unused = "\nor\n".join(
        f"count by ({owner}) (\n  max by ({owner}, uuid) ({s.last(name, p.job_matchers, **labels)})\n"
        f"  and on ({owner}, uuid) {s.at_begin(name, p.idle_patience, **labels)}\n  {idle}\n)"
        for owner, labels in ((s.job, {"workload_job": HAS_JOB}), (pod, {"workload_job": "", "workload_pod": "!"}))
    )
    return Alert(
        "AllocatedGpuUnused",
        f"({unused})" + s.unless_job(PROBLEM) + s.unless_job(is_low(p)),
        "info",
        f"{t.job()} does not use all GPUs that it was allocated",
        f"{t.value(digits=0)} of its GPUs were idle for {format_duration(p.idle_patience)}.{t.places()}",
        about="job",
        when=f"a GPU is allocated to a job and idle for {format_duration(p.idle_patience)}",
        described=False,
    )
