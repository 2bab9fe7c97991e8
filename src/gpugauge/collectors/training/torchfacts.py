"""Rows of what a training process is made of and where it is: build, devices, loader, runs, phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpugauge.metric import BYTES, NONE, SECONDS, TIMESTAMP, Metric, Table
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES

_process = Table("process")

_BUILD = ("build", "architectures", "driver_cuda", "kernel_driver", "cudnn", "tf32_matmul", "tf32_cudnn")
_VISIBLE = ("cuda_visible_devices", "nvidia_visible_devices", "device_nodes", "visible_devices")
_LOADER = ("loader_workers", "loader_batch_size", "loader_pin_memory", "loader_prefetch")
_PARALLEL = ("backend", "parallel", "sharding", "dataparallel_devices", "compiled", "grad_scaler")
_RUNS = ("wandb_run", "mlflow_run", "azureml_run", "torchrun_run", "tensorboard_dir")


def _facts(names: Sequence[str]) -> Callable[[Session], dict[tuple[str, ...], int] | None]:
    """Return a reader of an info row; None when the process has told none of the facts."""

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


def _phase(session: Session) -> dict[str, int] | None:
    return {phase: int(phase == session.page.phase) for phase in PHASES} if session.page else None


LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "torch_phase",
        "What the training thread does now; exactly one phase is 1.",
        NONE,
        _phase,
        "phase",
    ),
    _process.gauge(
        "training_phase_since_timestamp_seconds",
        "Unix time since when the training thread is in its phase, true also while it is blocked there.",
        TIMESTAMP,
        lambda s: s.page.since if s.page else None,
    ),
    _process.gauge(
        "torch_parameter_elements",
        "Elements of the parameters that optimizers hold; of sharded ones the part that this process holds.",
        NONE,
        _by_device_and_dtype(lambda snap: snap.parameters, lambda p: p.elements),
        *("device", "dtype"),
        source="Optimizer.param_groups",
    ),
    _process.gauge(
        "torch_optimizer_state_bytes",
        "What optimizers keep for the parameters, such as momenta.",
        BYTES,
        _by_device_and_dtype(lambda snap: snap.optimizer_state, lambda p: p.bytes),
        *("device", "dtype"),
        source="Optimizer.state",
    ),
    _process.gauge(
        "torch_device_info",
        "A device that the process sees, with the index that it knows it by; always 1, absent before it uses CUDA.",
        NONE,
        _devices,
        *("uuid", "index", "capability", "name"),
        source="torch.cuda.get_device_properties",
    ),
    _process.gauge(
        "torch_loader_info",
        "How the loader of the training loads; always 1.",
        NONE,
        _facts(_LOADER),
        *_without("loader_", _LOADER),
        source="torch.utils.data.DataLoader",
    ),
)

LASTING: tuple[Metric, ...] = (
    _process.gauge(
        "torch_build_info",
        "What torch was built for, and what it finds: architectures and versions once the program uses CUDA; always 1.",
        NONE,
        _facts((*_BUILD, *_VISIBLE)),
        *(*_BUILD, *_VISIBLE),
    ),
    _process.gauge(
        "torch_parallel_info",
        "How the training is spread and run: backend, wrapper, sharding, compilation, gradient scaling; always 1.",
        NONE,
        _facts(_PARALLEL),
        *_PARALLEL,
    ),
    _process.gauge(
        "torch_run_info",
        "What trackers of experiments call this run; always 1.",
        NONE,
        _facts(_RUNS),
        *_RUNS,
    ),
    _process.counter(
        "torch_phase_seconds_total",
        "Time that the training thread spent in each phase; they add up to the life of the session.",
        SECONDS,
        lambda s: s.page.seconds if s.page else None,
        "phase",
    ),
    _process.counter(
        "torch_data_wait_exposed_seconds_total",
        "The part of the waits for batches in which the device had nothing to do; absent where that cannot be known.",
        SECONDS,
        lambda s: s.snap.exposed_wait_seconds if s.snap else None,
        source="torch.cuda.Event",
    ),
    _process.counter(
        "torch_local_work_seconds_total",
        "Time of the steps less the waits for other ranks in them; absent without DistributedDataParallel.",
        SECONDS,
        lambda s: s.snap.local_work_seconds if s.snap else None,
        source="DistributedDataParallel, backward_comm_time less backward_compute_comm_overlap_time",
    ),
    _process.counter(
        "torch_compilations_total",
        "Compilations by torch.compile, anew for a changed shape included.",
        NONE,
        lambda s: s.snap.compilations if s.snap else None,
        source="torch._dynamo.callback",
    ),
)
