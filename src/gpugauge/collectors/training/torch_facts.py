"""Metric rows of training processes: build, devices, data loader, experiment runs, phases, the reason for the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpugauge.metric import Metric, Table
from gpugauge.node import training
from gpugauge.sessions import ends
from gpugauge.sessions.session import Session
from gpugauge.verdict import mistakes
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES

_process = Table[Session]("process")

_BUILD = (
    "build",
    "architectures",
    "driver_cuda",
    "kernel_driver",
    "cudnn",
    "tf32_matmul",
    "tf32_cudnn",
    "matmul_dtype",
)
_VISIBLE = ("cuda_visible_devices", "nvidia_visible_devices", "device_nodes", "visible_devices")
_LOADER = ("loader_workers", "loader_batch_size", "loader_pin_memory", "loader_prefetch")
_PARALLEL = ("backend", "parallel", "sharding", "dataparallel_devices", "compiled", "grad_scaler")
_SETTINGS = (
    *("autocast", "deterministic", "cudnn_benchmark", "cudnn_deterministic", "allocator", "alloc_conf"),
    *("current_device", "batch_device"),
)
_RUNS = ("wandb_run", "mlflow_run", "azureml_run", "torchrun_run", "tensorboard_dir")


def _facts(names: Sequence[str]) -> Callable[[Session], dict[tuple[str, ...], int] | None]:
    """Return a reader of an info row. It returns None if the process has reported none of the facts."""

    def values(session: Session) -> dict[tuple[str, ...], int] | None:
        facts = session.facts
        found = tuple(facts.get(name, "") for name in names)
        return {found: 1} if any(found) else None

    return values


def _without(prefix: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix(prefix) for name in names)


def _by_device_and_dtype(
    read: Callable[[wire.Snap], Sequence[wire.Parameters]], figure: Callable[[wire.Parameters], int]
) -> Callable[[Session], dict[tuple[str, ...], int] | None]:
    def values(session: Session) -> dict[tuple[str, ...], int] | None:
        entries = read(session.snap) if session.snap else ()
        return {(entry.device, entry.dtype): figure(entry) for entry in entries} or None

    return values


def _devices(session: Session) -> dict[tuple[str, ...], int] | None:
    devices = session.snap.devices if session.snap else ()
    return {(d.uuid, str(d.index), d.capability or "", d.name or ""): 1 for d in devices if d.uuid is not None} or None


def _mistakes(session: Session) -> dict[str, int] | None:
    return {name: int(present) for name, present in mistakes.found({**session.facts, **session.around}).items()} or None


def _phase(session: Session) -> dict[str, int] | None:
    return {phase: int(phase == session.record.phase) for phase in PHASES} if session.record else None


def _end(session: Session) -> dict[tuple[str, ...], int] | None:
    if not session.end_reason:
        return None
    status = session.end_status
    return {(session.end_reason, ends.exit_code(status), ends.signal_number(status)): 1}


LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "torch_phase",
        "Current phase of the training thread; exactly one phase is 1.",
        _phase,
        "phase",
    ),
    _process.gauge(
        "training_phase_since_timestamp_seconds",
        "Unix time at which the current phase of the training thread began; also correct while the thread is blocked.",
        lambda s: s.record.since if s.record else None,
    ),
    _process.gauge(
        "torch_parameter_elements",
        "Number of elements in the optimizers' parameters. Of sharded parameters, only the part of this process is "
        "counted.",
        _by_device_and_dtype(lambda snap: snap.parameters, lambda p: p.elements),
        *("device", "dtype"),
        source="Optimizer.param_groups",
    ),
    _process.gauge(
        "torch_optimizer_state_bytes",
        "Memory of the optimizer state, such as momenta.",
        _by_device_and_dtype(lambda snap: snap.optimizer_state, lambda p: p.bytes),
        *("device", "dtype"),
        source="Optimizer.state",
    ),
    _process.gauge(
        "torch_device_info",
        "A device that is visible to the process, with its index in that process; always 1, absent before the "
        "process uses CUDA.",
        _devices,
        *("uuid", "index", "capability", "name"),
        source="torch.cuda.get_device_properties",
    ),
    _process.gauge(
        "torch_loader_info",
        "Options of the data loader of the training; always 1.",
        _facts(_LOADER),
        *_without("loader_", _LOADER),
        source="torch.utils.data.DataLoader",
    ),
    _process.gauge(
        "training_mistake",
        "1 while the training program makes a known mistake that costs time, 0 while it does not; absent for a mistake "
        "that the reported facts do not decide (docs/verdict.md).",
        _mistakes,
        "mistake",
    ),
)

LASTING: tuple[Metric, ...] = (
    _process.gauge(
        "torch_build_info",
        "Build of torch, the precision of its matrix products, and the devices that are visible to it; always 1. "
        "Architectures and versions are reported as soon as the program uses CUDA.",
        _facts((*_BUILD, *_VISIBLE)),
        *(*_BUILD, *_VISIBLE),
    ),
    _process.gauge(
        "torch_parallel_info",
        "Distribution of the training: backend, wrapper, sharding, compilation, gradient scaling; always 1.",
        _facts(_PARALLEL),
        *_PARALLEL,
    ),
    _process.gauge(
        "torch_settings_info",
        "Settings of the training: autocast (yes where at least half of the steps use it), algorithms, the allocator "
        "of device memory and its configuration, the current device of the training thread after a step, and the "
        "device of the batches as the loader returns them. Always 1.",
        _facts(_SETTINGS),
        *_SETTINGS,
    ),
    _process.gauge(
        "torch_run_info",
        "Ids of the run in experiment trackers; always 1.",
        _facts(_RUNS),
        *_RUNS,
    ),
    _process.counter(
        "torch_phase_seconds_total",
        "Time that the training thread spent in each phase. The sum over all phases is the duration of the session.",
        lambda s: s.record.seconds if s.record else None,
        "phase",
    ),
    _process.counter(
        "torch_data_wait_exposed_seconds_total",
        "Part of the waits for batches in which the device was idle; absent if that cannot be determined.",
        training.exposed_wait,
        source="torch.cuda.Event",
    ),
    _process.counter(
        "torch_local_work_seconds_total",
        "Time of the steps without the waits for other ranks, measured in DistributedDataParallel and in collectives "
        "that block the process (gloo, mpi). Absent where the waits are not known.",
        training.local_work,
        source="torch.distributed",
    ),
    _process.counter(
        "torch_compilations_total",
        "Compilations by torch.compile, including recompilations.",
        lambda s: s.snap.compilations if s.snap else None,
        source="torch._dynamo.callback",
    ),
    _process.gauge(
        "training_end_info",
        "Why the process ended: the reason as in gpugauge_trainings_ended_total, and the exit code or the number of "
        "the signal, empty where the daemon cannot read it. Always 1; absent while the process is connected.",
        _end,
        *("reason", "exit_code", "signal"),
        source="/proc/PID/stat, PIDFD_GET_INFO",
    ),
)
