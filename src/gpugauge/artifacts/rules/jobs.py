"""The alerts whose identity is a job: its load, what it is lost to, and its progress."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import CAUSES_TOLD, PROGRAMS, WHO, Alert, each
from gpugauge.artifacts.rules.options import Parameters, Severity, duration
from gpugauge.artifacts.rules.recording import (
    ALIVE,
    ARMED,
    DEVICE_BUSY,
    DOMINANT,
    JOB,
    LOAD,
    RANK_WORK,
    STALLED,
    Selectors,
    by_job,
    by_process,
    jobs_with,
)
from gpugauge.verdict.causes import CAUSES, Cause

_ON_CPU = "~no_cuda_build|no_visible_device|driver_mismatch|unsupported_arch|model_on_cpu"
_NOT_OF_LOAD = frozenset({*_ON_CPU[1:].split("|"), "unknown"})


def of_jobs(p: Parameters) -> list[Alert]:
    """Return the alerts about the load of jobs."""
    return [*_load(p), *_causes(p)]


def of_processes(p: Parameters) -> list[Alert]:
    """Return the alerts about how the processes of jobs go on."""
    return [_straggler(p), *_progress(p)]


def of_use(p: Parameters) -> list[Alert]:
    """Return the alerts about how jobs use what they hold, were given or could have."""
    return [*_idle(p), *_on_cpu(p), _memory(p), _unused(p)]


def _load(p: Parameters) -> list[Alert]:
    levels: list[tuple[str, float, Severity]] = [
        ("TrainingLoadLow", p.info_below, "info"),
        ("TrainingLoadVeryLow", p.warning_below, "warning"),
    ]
    return [
        Alert(
            name,
            f"{LOAD} < {below:g}\nand on ({JOB}) {ARMED}",
            severity,
            f"Training {WHO} uses {{{{ $value | humanizePercentage }}}} of its GPU time",
            f"Mean over {duration(p.patience)}, below {below:.0%}. Lost to:{CAUSES_TOLD} {PROGRAMS}",
            p.settle,
        )
        for name, below, severity in levels
    ]


def alert_of_cause(cause: str) -> str:
    """Return the name of the alert about a main cause."""
    return "TrainingLimitedBy" + "".join(part.capitalize() for part in cause.split("_"))


def severity_of_cause(cause: Cause) -> Severity:
    """A cause that was never seen outside of a simulation informs and no more."""
    return "warning" if set(cause.proven) - {"simulated"} else "info"


def _causes(p: Parameters) -> list[Alert]:
    low = f"and on ({JOB}) {LOAD} < {p.warning_below:g}\nand on ({JOB}) {ARMED}"
    return [
        Alert(
            alert_of_cause(cause.name),
            f'sum by ({JOB}) ({DOMINANT}{{cause="{cause.name}"}})\n{low}',
            severity_of_cause(cause),
            f"Training {WHO} loses {{{{ $value | humanizePercentage }}}} of its GPU time to {cause.name}",
            f"Seen: {cause.evidence}. Advice: {cause.advice}. Lost to:{CAUSES_TOLD} {PROGRAMS}",
            p.settle,
        )
        for cause in CAUSES.values()
        if cause.name not in _NOT_OF_LOAD
    ]


def _straggler(p: Parameters) -> Alert:
    # Ranks of one run do the same work; a job may hold several runs.
    run = f"{JOB}, run_id, world_size"
    slower = f"max by ({run}) ({RANK_WORK})\n/ (quantile by ({run}) (0.5, {RANK_WORK}) > 0)"
    slowest = each(
        f"topk(1, {RANK_WORK}",
        ")",
        " rank {{ .Labels.rank }} on {{ .Labels.instance }} works {{ .Value | humanizePercentage }} of the time;",
    )
    middle = each(f"quantile(0.5, {RANK_WORK}", ")", " {{ .Value | humanizePercentage }}")
    return Alert(
        "TrainingStraggler",
        f"max by ({JOB}) ({slower}) > {p.straggler_above:g}\nand on ({JOB}) {ARMED}\nand on ({JOB}) {ALIVE}",
        "warning",
        f"A rank of training {WHO} needs {{{{ $value | humanize }}}} times as long as the others",
        f"Slow:{slowest} the rank in the middle{middle}, over {duration(p.patience)}. {PROGRAMS}",
        p.settle,
    )


def _idle(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    # Of the time that is known, which is nearly all: a restart takes nothing away, and a young process has not been
    # idle for long. A short use in every half hour is use.
    idle = by_process(f"rate({s('training_seconds_total', p.idle_patience, state='held_idle')})")
    known = f"sum by (process) (rate({s('training_seconds_total', p.idle_patience)}))"
    return [
        Alert(
            "GpuHeldIdle",
            by_job("max", f"({idle} / ({known} >= 0.9) >= 0.95)"),
            "warning",
            f"{WHO} holds GPUs and does not use them",
            f"Idle for {{{{ $value | humanizePercentage }}}} of the last {duration(p.idle_patience)}. {PROGRAMS}",
            p.settle,
        )
    ]


def _on_cpu(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    # The exporter names one of these causes only where the host has a GPU.
    on_cpu = jobs_with(f"max_over_time({s('training_limited_by', p.patience, cause=_ON_CPU)})")
    share = by_job("max", f"(rate({s('training_seconds_total', p.patience, state='training_on_cpu')}) >= 0.8)")
    # Each process once, and only where the machine has a GPU that answers.
    build = f"max_over_time({s('gpu_process_host_info', p.patience, torch_build='cpu')})"
    cpu_build = f"({build} and on (instance) max_over_time({s('gpu_up', p.patience)}) == 1)"
    cpus = f"rate({s('gpu_process_cpu_seconds_total', p.patience, part='process')})"
    busy = by_job("sum", by_process(f"{cpus} and on (process) {cpu_build}"))
    hooked = jobs_with(f"max_over_time({s('torch_process_info', p.patience)})")
    return [
        Alert(
            "TrainingOnCpu",
            f"{share}\nand on ({JOB}) {on_cpu}",
            "warning",
            f"Training {WHO} runs on the CPU while a GPU is there",
            f"On the CPU for {{{{ $value | humanizePercentage }}}} of the last {duration(p.patience)}. {PROGRAMS}",
            p.settle,
        ),
        Alert(
            "TorchCpuBuildBusy",
            f"{busy} >= 1\nunless on ({JOB}) {hooked}",
            "info",
            f"{WHO} computes with a CPU build of PyTorch on a machine with GPUs",
            f"{{{{ $value | humanize }}}} CPUs busy for {duration(p.idle_patience)}; perhaps no training. {PROGRAMS}",
            p.idle_patience,
        ),
    ]


def _progress(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    there = f"\nand on ({JOB}) {ALIVE}"
    memory = s("gpu_process_memory_used_bytes", p.lookback)
    devices = f"(last_over_time({memory}) > 0 and on (uuid) {DEVICE_BUSY} >= 0.9)"
    return [
        Alert(
            "TrainingStalled",
            jobs_with(STALLED) + there,
            "warning",
            f"Training {WHO} makes no steps any more",
            f"No step or batch for more than {duration(p.stall_patience)}. {PROGRAMS}",
            p.stall_patience,
        ),
        Alert(
            "TrainingBusyWithoutProgress",
            jobs_with(f"{STALLED} and on (process) {devices}") + there,
            "warning",
            f"Training {WHO} keeps its GPUs busy and makes no steps",
            "The GPUs are more than 90 % busy and no step ends: most likely a collective that waits for a lost rank.",
            p.stall_patience,
        ),
    ]


def _memory(p: Parameters) -> Alert:
    s = Selectors(p)
    name = "torch_memory_ooms_total"
    # A process that begins with an error has nothing to rise from.
    first = f"{s(name)} > 0 unless on (process) count_over_time({s(name, 3600)} offset {duration(p.patience)})"
    rise = by_process(f"increase({s(name, p.patience)}) > 0 or ({first})")
    return Alert(
        "TrainingOutOfMemory",
        by_job("sum", rise),
        "warning",
        f"Training {WHO} ran out of GPU memory",
        f"{{{{ $value | humanize }}}} out-of-memory errors in {duration(p.patience)}, caught ones included.",
    )


def _unused(p: Parameters) -> Alert:
    s = Selectors(p)
    given = f"max by (uuid, {JOB}) ({s('gpu_allocation_info')})"
    keyed = f'label_replace({given}, "workload_user", "", "workload_job_id", ".+")'
    busy = f"max by (uuid) (rate({s('gpu_busy_seconds_total', p.idle_patience, engine='gpu')}))"
    seen = f"max by (uuid) (rate({s('gpu_observed_seconds_total', p.idle_patience, engine='gpu')}))"
    return Alert(
        "AllocatedGpuUnused",
        f"count by ({JOB}) (\n  {keyed}\n  and on (uuid) ({busy} / ({seen} >= 0.8) < 0.01)\n)",
        "info",
        f"{WHO} was given GPUs that it does not use",
        f"{{{{ $value }}}} of its GPUs were idle for {duration(p.idle_patience)}.",
        p.settle,
    )
