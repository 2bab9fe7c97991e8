"""Alerts about jobs: their load, its causes, and their progress."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import JOB_NAME, LOST_TO, PROGRAMS, Alert, for_each_series
from gpugauge.artifacts.rules.options import Parameters, Severity
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
from gpugauge.duration import format_duration
from gpugauge.verdict.causes import CAUSES, Cause

_CPU_CAUSES = "~no_cuda_build|no_visible_device|driver_mismatch|unsupported_arch|model_on_cpu"
_CAUSES_WITHOUT_ALERT = frozenset({*_CPU_CAUSES[1:].split("|"), "unknown"})


def of_jobs(p: Parameters) -> list[Alert]:
    """Return the alerts about the load of jobs."""
    return [*_load(p), *_causes(p)]


def of_processes(p: Parameters) -> list[Alert]:
    """Return the alerts about the progress of the processes of jobs."""
    return [_straggler(p), *_progress(p)]


def of_use(p: Parameters) -> list[Alert]:
    """Return the alerts about how jobs use the GPUs that they hold, were allocated or could use."""
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
            f"Training {JOB_NAME} uses {{{{ $value | humanizePercentage }}}} of its GPU time",
            f"Mean over {format_duration(p.patience)}, below {below:.0%}. Lost to:{LOST_TO} {PROGRAMS}",
            p.settle,
        )
        for name, below, severity in levels
    ]


def alert_of_cause(cause: str) -> str:
    """Return the name of the alert about a cause."""
    return "TrainingLimitedBy" + "".join(part.capitalize() for part in cause.split("_"))


def severity_of_cause(cause: Cause) -> Severity:
    """Return `info` for a cause that was proven in simulation only, otherwise `warning`."""
    return "warning" if set(cause.proven) - {"simulated"} else "info"


def _causes(p: Parameters) -> list[Alert]:
    low = f"and on ({JOB}) {LOAD} < {p.warning_below:g}\nand on ({JOB}) {ARMED}"
    return [
        Alert(
            alert_of_cause(cause.name),
            f'sum by ({JOB}) ({DOMINANT}{{cause="{cause.name}"}})\n{low}',
            severity_of_cause(cause),
            f"Training {JOB_NAME} loses {{{{ $value | humanizePercentage }}}} of its GPU time to {cause.name}",
            f"Evidence: {cause.evidence}. Advice: {cause.advice}. Lost to:{LOST_TO} {PROGRAMS}",
            p.settle,
        )
        for cause in CAUSES.values()
        if cause.name not in _CAUSES_WITHOUT_ALERT
    ]


def _straggler(p: Parameters) -> Alert:
    # Within a run, because only its ranks do the same work; a job may contain several runs.
    run = f"{JOB}, run_id, world_size"
    slower = f"max by ({run}) ({RANK_WORK})\n/ (quantile by ({run}) (0.5, {RANK_WORK}) > 0)"
    slowest = for_each_series(
        f"topk(1, {RANK_WORK}",
        ")",
        " rank {{ .Labels.rank }} on {{ .Labels.instance }} works {{ .Value | humanizePercentage }} of the time;",
    )
    median = for_each_series(f"quantile(0.5, {RANK_WORK}", ")", " {{ .Value | humanizePercentage }}")
    return Alert(
        "TrainingStraggler",
        f"max by ({JOB}) ({slower}) > {p.straggler_above:g}\nand on ({JOB}) {ARMED}\nand on ({JOB}) {ALIVE}",
        "warning",
        f"A rank of training {JOB_NAME} works {{{{ $value | humanize }}}} times as long as the median rank",
        f"Slowest:{slowest} the median rank{median}, over {format_duration(p.patience)}. {PROGRAMS}",
        p.settle,
    )


def _idle(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    # Relative to the observed time, so that a restart of the exporter does not count as use; >= 0.9, so that a young
    # process is left out. A process that uses its GPU for 5 % of the window is not idle.
    idle = by_process(f"rate({s('training_seconds_total', p.idle_patience, state='held_idle')})")
    known = f"sum by (process) (rate({s('training_seconds_total', p.idle_patience)}))"
    return [
        Alert(
            "GpuHeldIdle",
            by_job("max", f"({idle} / ({known} >= 0.9) >= 0.95)"),
            "warning",
            f"{JOB_NAME} holds GPUs without using them",
            f"Idle for {{{{ $value | humanizePercentage }}}} of the last {format_duration(p.idle_patience)}. "
            f"{PROGRAMS}",
            p.settle,
        )
    ]


def _on_cpu(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    # The exporter reports these causes only on hosts with a GPU.
    on_cpu = jobs_with(f"max_over_time({s('training_limited_by', p.patience, cause=_CPU_CAUSES)})")
    share = by_job("max", f"(rate({s('training_seconds_total', p.patience, state='training_on_cpu')}) >= 0.8)")
    # Each process once, and only on machines with a GPU that answers.
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
            f"Training {JOB_NAME} runs on the CPU of a machine with a GPU",
            f"On the CPU for {{{{ $value | humanizePercentage }}}} of the last {format_duration(p.patience)}. "
            f"{PROGRAMS}",
            p.settle,
        ),
        Alert(
            "TorchCpuBuildBusy",
            f"{busy} >= 1\nunless on ({JOB}) {hooked}",
            "info",
            f"{JOB_NAME} computes with a CPU build of PyTorch on a machine with GPUs",
            f"{{{{ $value | humanize }}}} CPUs busy for {format_duration(p.idle_patience)}, perhaps no training. "
            f"{PROGRAMS}",
            p.idle_patience,
        ),
    ]


def _progress(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    alive = f"\nand on ({JOB}) {ALIVE}"
    memory = s("gpu_process_memory_used_bytes", p.lookback)
    devices = f"(last_over_time({memory}) > 0 and on (uuid) {DEVICE_BUSY} >= 0.9)"
    return [
        Alert(
            "TrainingStalled",
            jobs_with(STALLED) + alive,
            "warning",
            f"Training {JOB_NAME} makes no progress",
            f"No step or batch for more than {format_duration(p.stall_patience)}. {PROGRAMS}",
            p.stall_patience,
        ),
        Alert(
            "TrainingBusyWithoutProgress",
            jobs_with(f"{STALLED} and on (process) {devices}") + alive,
            "warning",
            f"Training {JOB_NAME} keeps its GPUs busy without progress",
            "The GPUs are more than 90 % busy and no step ends: most likely a collective waits for a lost rank.",
            p.stall_patience,
        ),
    ]


def _memory(p: Parameters) -> Alert:
    s = Selectors(p)
    name = "torch_memory_ooms_total"
    # The first value of a new series, which increase() does not count.
    first = f"{s(name)} > 0 unless on (process) count_over_time({s(name, 3600)} offset {format_duration(p.patience)})"
    rise = by_process(f"increase({s(name, p.patience)}) > 0 or ({first})")
    return Alert(
        "TrainingOutOfMemory",
        by_job("sum", rise),
        "warning",
        f"Training {JOB_NAME} ran out of GPU memory",
        f"{{{{ $value | humanize }}}} out-of-memory errors in {format_duration(p.patience)}, caught ones included.",
    )


def _unused(p: Parameters) -> Alert:
    s = Selectors(p)
    allocated = f"max by (uuid, {JOB}) ({s('gpu_allocation_info')})"
    keyed = f'label_replace({allocated}, "workload_user", "", "workload_job_id", ".+")'
    busy = f"max by (uuid) (rate({s('gpu_busy_seconds_total', p.idle_patience, engine='gpu')}))"
    observed = f"max by (uuid) (rate({s('gpu_observed_seconds_total', p.idle_patience, engine='gpu')}))"
    return Alert(
        "AllocatedGpuUnused",
        f"count by ({JOB}) (\n  {keyed}\n  and on (uuid) ({busy} / ({observed} >= 0.8) < 0.01)\n)",
        "info",
        f"{JOB_NAME} does not use all GPUs that it was allocated",
        f"{{{{ $value }}}} of its GPUs were idle for {format_duration(p.idle_patience)}.",
        p.settle,
    )
