"""Metric rows of training processes: steps, batches, memory, phases, facts about torch and its program, the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpugauge.collectors.training.collective_rows import COLLECTIVES
from gpugauge.metric import Metric, Table
from gpugauge.node import training
from gpugauge.sessions import ends
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES
from gpugauge.workload.identity import JOB_LABELS

_process, _device = Table[Session]("process"), Table[Session]("process", "uuid")
_parameters = Table[Session]("process", "device", "dtype")

_FACTS = ("command", "python", "torch", "cuda", "hip", "rank", "local_rank", "world_size", "run_id")
_BUILD = (
    *("build", "architectures", "driver_cuda", "kernel_driver", "cudnn"),
    *("tf32_matmul", "tf32_cudnn", "matmul_dtype"),
)
_VISIBLE = ("cuda_visible_devices", "nvidia_visible_devices", "device_nodes", "visible_devices")
_PARALLEL = ("backend", "parallel", "sharding", "dataparallel_devices", "compiled", "grad_scaler")
_SETTINGS = (
    *("autocast", "deterministic", "cudnn_benchmark", "cudnn_deterministic", "allocator", "alloc_conf"),
    *("current_device", "batch_device"),
)
_RUNS = ("wandb_run", "mlflow_run", "azureml_run", "torchrun_run", "tensorboard_dir", "gpugauge_run")


def _info(session: Session) -> dict[tuple[str, ...], float]:
    pid = str(session.peer_pid) if session.peer_pid > 0 else ""
    own = str(session.hello.pid) if session.hello.pid is not None else ""
    facts = session.facts
    return {(pid, own, *(facts.get(name, "") for name in _FACTS), *session.owner): 1}


def _step_source(session: Session) -> dict[str, int] | None:
    source = session.snap.step_source if session.snap else None
    # Hooks before version 1.1 of the protocol count optimizer steps only, and do not send a source.
    return {source if source in wire.STEP_SOURCES else "optimizer": 1} if training.steps(session) else None


def _by_uuid(figure: Callable[[wire.Device], int | None]) -> Callable[[Session], dict[str, int] | None]:
    return lambda session: training.by_uuid(session, figure) or None


def _facts(names: Sequence[str]) -> Callable[[Session], dict[tuple[str, ...], int] | None]:
    """Return a reader of an info row. It returns None if the process has reported none of the facts."""

    def values(session: Session) -> dict[tuple[str, ...], int] | None:
        facts = session.facts
        found = tuple(facts.get(name, "") for name in names)
        return {found: 1} if any(found) else None

    return values


def _thread(session: Session) -> dict[tuple[str, ...], float] | None:
    return {
        (phase, state): seconds
        for phase, time in session.thread.items()
        for state, seconds in (("running", time.running), ("runnable", time.runnable), ("asleep", time.asleep))
    } or None


def _by_device_and_dtype(
    read: Callable[[wire.Snap], Sequence[wire.Parameters]], figure: Callable[[wire.Parameters], int]
) -> Callable[[Session], dict[tuple[str, ...], int] | None]:
    def values(session: Session) -> dict[tuple[str, ...], int] | None:
        entries = read(session.snap) if session.snap else ()
        return {(entry.device, entry.dtype): figure(entry) for entry in entries} or None

    return values


def _devices(session: Session) -> dict[tuple[str, ...], int] | None:
    found = ((str(d.uuid), str(d.index), d.capability or "", d.name or "") for d in training.visible(session))
    return dict.fromkeys(found, 1) or None


def _phase(session: Session) -> dict[str, int] | None:
    return {phase: int(phase == session.record.phase) for phase in PHASES} if session.record else None


def _end(session: Session) -> dict[tuple[str, ...], int] | None:
    if not session.end_reason:
        return None
    status = session.end_status
    return {(session.end_reason, ends.exit_code(status), ends.signal_number(status)): 1}


# Exported while the process is connected.
LIVE: tuple[Metric, ...] = (
    _device.gauge(
        "torch_memory_allocated_bytes",
        "Memory of tensors in the caching allocator of torch.",
        _by_uuid(lambda d: d.allocated),
        source="torch.cuda.memory_stats allocated_bytes.all.current",
    ),
    PEAK := _device.gauge(
        "torch_memory_allocated_peak_bytes",
        "Peak memory of tensors since the process started or the program reset the peak.",
        _by_uuid(lambda d: d.allocated_peak),
        source="torch.cuda.memory_stats allocated_bytes.all.peak",
    ),
    _device.gauge(
        "torch_memory_step_allocated_bytes",
        "Memory of tensors after a step, read once a second at the same point of the step.",
        _by_uuid(lambda d: d.step_allocated),
        source="torch.cuda.memory_stats allocated_bytes.all.current",
    ),
    MEMORY_LIMIT := _device.gauge(
        "torch_memory_limit_bytes",
        "Device memory that the allocator of torch may take: all of it, or the share that the program has set.",
        _by_uuid(lambda d: d.limit),
        source="torch.cuda.get_device_properties, torch.cuda.get_per_process_memory_fraction",
    ),
    _device.gauge(
        "torch_memory_reserved_bytes",
        "Device memory that the caching allocator of torch holds, used or not.",
        _by_uuid(lambda d: d.reserved),
        source="torch.cuda.memory_stats reserved_bytes.all.current",
    ),
    _device.gauge(
        "torch_memory_active_bytes",
        "Memory of blocks that are in use or wait for another stream to release them.",
        _by_uuid(lambda d: d.active),
        source="torch.cuda.memory_stats active_bytes.all.current",
    ),
    _device.gauge(
        "torch_memory_inactive_split_bytes",
        "Free memory in split blocks, which cannot be returned to the device: fragmentation.",
        _by_uuid(lambda d: d.inactive_split),
        source="torch.cuda.memory_stats inactive_split_bytes.all.current",
    ),
    _process.gauge(
        "torch_parameter_bytes",
        "Memory of the optimizers' parameters, by device as torch names it.",
        lambda s: training.parameter_bytes(s) or None,
        "device",
        source="Optimizer.param_groups",
    ),
    _process.gauge(
        "torch_step_source",
        "Event by which the steps are counted; always 1, absent before the first step.",
        _step_source,
        "source",
    ),
    _process.gauge("torch_phase", "Current phase of the training thread; exactly one phase is 1.", _phase, "phase"),
    _process.gauge(
        "training_phase_since_timestamp_seconds",
        "Unix time at which the current phase of the training thread began; also correct while the thread is blocked.",
        lambda s: s.record.since if s.record else None,
    ),
    *COLLECTIVES,
    _parameters.gauge(
        "torch_parameter_elements",
        "Number of elements in the optimizers' parameters. Of sharded parameters, only the part of this process is "
        "counted.",
        _by_device_and_dtype(lambda snap: snap.parameters, lambda p: p.elements),
        source="Optimizer.param_groups",
    ),
    _parameters.gauge(
        "torch_optimizer_state_bytes",
        "Memory of the optimizer state, such as momenta.",
        _by_device_and_dtype(lambda snap: snap.optimizer_state, lambda p: p.bytes),
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
    LOADER := _process.gauge(
        "torch_loader_info",
        "Options of the data loader of the training; always 1.",
        _facts(training.LOADER_FACTS),
        *(name.removeprefix("loader_") for name in training.LOADER_FACTS),
        source="torch.utils.data.DataLoader",
    ),
    MISTAKE := _process.gauge(
        "training_mistake",
        "1 while the training program makes a known mistake that costs time, 0 while it does not; absent for a mistake "
        "that the reported facts do not decide (docs/verdict.md).",
        lambda s: {name: int(present) for name, present in s.mistakes.items()} or None,
        "mistake",
    ),
)

# Also exported for some minutes after the end of the process, so that the last interval is scraped.
LASTING: tuple[Metric, ...] = (
    INFO := _process.gauge(
        "torch_process_info",
        "Facts that a training process reports about itself, its pid in the daemon's pid namespace, and its "
        "job; always 1.",
        _info,
        *("pid", "container_pid", *_FACTS, *JOB_LABELS),
    ),
    STEPS := _process.counter(
        "torch_steps_total",
        "Training steps, counted by the event in torch_step_source. Optimizers that step in one loop count like the "
        "one that steps most often; optimizers that are used one after another add up. Absent before the first step, "
        "and while no optimizer of torch is used and the program reports no steps.",
        training.steps,
        source="torch.optim.optimizer.register_optimizer_step_post_hook",
    ),
    STEP_DURATION := _process.histogram(
        "torch_step_duration_seconds",
        "Time from one optimizer step to the next.",
        training.step_durations,
        training.STEP_BUCKETS,
    ),
    _process.counter(
        "torch_batches_total",
        "Batches that the training thread has taken from data loaders; absent before the first one.",
        training.batches,
        source="torch.utils.data.DataLoader",
    ),
    DATA_WAIT := _process.counter(
        "torch_data_wait_seconds_total",
        "Time in which the training thread waited for batches, by the phase that they were for. The GPU can be busy in "
        "the meantime. Absent while no wait is known: the loader is not torch's, or another thread reads it.",
        lambda s: training.waits(s) or None,
        "phase",
        source="torch.utils.data.DataLoader, gpugauge.hook.batches, gpugauge.hook.waiting",
    ),
    SAMPLES := _process.counter(
        "torch_samples_total",
        "Samples of the training: as the program reports them with gpugauge.hook.step(samples=), else in the training "
        "batches that were taken before the last step. Absent if the size of a batch is not known.",
        training.samples,
        source="torch.utils.data.DataLoader, gpugauge.hook.step",
    ),
    _process.counter(
        "torch_tokens_total",
        "Tokens of the training: as the program reports them with gpugauge.hook.step(tokens=), else in the input_ids "
        "of the batches that torch_samples_total counts, padding included. Absent if a batch has none.",
        training.tokens,
        source="torch.utils.data.DataLoader, gpugauge.hook.step",
    ),
    _process.counter(
        "torch_model_flops_total",
        "Floating-point operations of the model in the steps of this process, forward and backward, by source: stated "
        "by the program, counted in one step, or 6 times the weights of a dense transformer for each token "
        "(parameters). Absent if they are not known.",
        lambda s: training.flops(s) or None,
        "source",
        source="gpugauge.hook.flops, torch.utils.flop_counter",
    ),
    _device.counter(
        "torch_memory_alloc_retries_total",
        "Allocations that succeeded only after cached memory was released.",
        _by_uuid(lambda d: d.retries),
        source="torch.cuda.memory_stats num_alloc_retries",
    ),
    OOMS := _device.counter(
        "torch_memory_ooms_total",
        "Out-of-memory errors, including caught ones.",
        _by_uuid(lambda d: d.ooms),
        source="torch.cuda.memory_stats num_ooms",
    ),
    _device.counter(
        "torch_memory_device_allocs_total",
        "Calls of the driver to allocate device memory, such as cudaMalloc.",
        _by_uuid(lambda d: d.device_allocs),
        source="torch.cuda.memory_stats num_device_alloc",
    ),
    _device.counter(
        "torch_memory_device_frees_total",
        "Calls of the driver to free device memory, such as cudaFree.",
        _by_uuid(lambda d: d.device_frees),
        source="torch.cuda.memory_stats num_device_free",
    ),
    START := _process.gauge(
        "training_start_timestamp_seconds",
        "Unix time of the first step, batch or watch() call of the process.",
        lambda s: s.hello.started,
    ),
    _process.gauge("training_last_step_timestamp_seconds", "Unix time of the last optimizer step.", training.last_step),
    END := _process.gauge(
        "training_end_timestamp_seconds",
        "Unix time at which the process ended or its connection was lost; absent while it is connected.",
        lambda s: s.ended_at,
    ),
    _process.counter(
        "gpugauge_hook_errors_total",
        "Errors of the hook itself inside the process; at 10 errors it disables itself.",
        lambda s: s.snap.errors if s.snap else None,
    ),
    BUILD := _process.gauge(
        "torch_build_info",
        "Build of torch, the precision of its matrix products, and the devices that are visible to it; always 1. "
        "Architectures and versions are reported as soon as the program uses CUDA.",
        _facts((*_BUILD, *_VISIBLE)),
        *(*_BUILD, *_VISIBLE),
    ),
    PARALLEL := _process.gauge(
        "torch_parallel_info",
        "Distribution of the training: backend, wrapper, sharding, compilation, gradient scaling; always 1.",
        _facts(_PARALLEL),
        *_PARALLEL,
    ),
    SETTINGS := _process.gauge(
        "torch_settings_info",
        "Settings of the training: autocast (yes where at least half of the steps use it), algorithms, the allocator "
        "of device memory and its configuration, the current device of the training thread after a step, and the "
        "device of the batches as the loader returns them. Always 1.",
        _facts(_SETTINGS),
        *_SETTINGS,
    ),
    RUN := _process.gauge("torch_run_info", "Ids of the run in experiment trackers; always 1.", _facts(_RUNS), *_RUNS),
    PHASE_SECONDS := _process.counter(
        "torch_phase_seconds_total",
        "Time that the training thread spent in each phase. The sum over all phases is the duration of the session.",
        lambda s: s.record.seconds if s.record else None,
        "phase",
    ),
    THREAD_SECONDS := _process.counter(
        "torch_thread_seconds_total",
        "Time of the training thread in each phase: on a CPU (running), waiting for one (runnable), asleep; since the "
        "daemon has seen it. The threads that run its backward passes on a GPU count as this one. Of several phases in "
        "a second, sleep counts for the others before training.",
        _thread,
        *("phase", "state"),
        source="/proc/PID/task/TID/schedstat",
    ),
    EXPOSED_WAIT := _process.counter(
        "torch_data_wait_exposed_seconds_total",
        "Part of the waits for batches in which the device was idle; absent if that cannot be determined.",
        training.exposed_wait,
        source="torch.cuda.Event",
    ),
    LOCAL_WORK := _process.counter(
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
    END_INFO := _process.gauge(
        "training_end_info",
        "Why the process ended: the reason as in gpugauge_trainings_ended_total, and the exit code or the number of "
        "the signal, empty where the daemon cannot read it. Always 1; absent while the process is connected.",
        _end,
        *("reason", "exit_code", "signal"),
        source="/proc/PID/stat, PIDFD_GET_INFO",
    ),
)
