"""Metric rows of training processes: steps, batches, memory, parameters, start and end."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.metric import Metric, Table
from gpugauge.node import training
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire
from gpugauge.workload.identity import JOB_LABELS

_process = Table[Session]("process")

_FACTS = ("command", "python", "torch", "cuda", "hip", "rank", "local_rank", "world_size", "run_id")


def _info(session: Session) -> dict[tuple[str, ...], float]:
    pid = str(session.peer_pid) if session.peer_pid > 0 else ""
    own = str(session.hello.pid) if session.hello.pid is not None else ""
    facts = session.facts
    return {(pid, own, *(facts.get(name, "") for name in _FACTS), *session.owner): 1}


def _reported(sent: int | None, recorded: int | None) -> int | None:
    """Return the count of the last message, or of the shared record, which is newer; None if the count is not known."""
    return None if sent is None else max(sent, recorded or 0)


def _step_source(session: Session) -> dict[str, int] | None:
    source = session.snap.step_source if session.snap else None
    # Hooks before version 1.1 of the protocol count optimizer steps only, and do not send a source.
    return {source if source in wire.STEP_SOURCES else "optimizer": 1} if training.steps(session) else None


def _by_uuid(figure: Callable[[wire.Device], int | None]) -> Callable[[Session], dict[str, int] | None]:
    return lambda session: training.by_uuid(session, figure) or None


# Exported while the process is connected.
LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "torch_memory_allocated_bytes",
        "Memory of tensors in the caching allocator of torch.",
        _by_uuid(lambda d: d.allocated),
        "uuid",
        source="torch.cuda.memory_stats allocated_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_allocated_peak_bytes",
        "Peak memory of tensors since the process started or the program reset the peak.",
        _by_uuid(lambda d: d.allocated_peak),
        "uuid",
        source="torch.cuda.memory_stats allocated_bytes.all.peak",
    ),
    _process.gauge(
        "torch_memory_step_allocated_bytes",
        "Memory of tensors after a step, read once a second at the same point of the step.",
        _by_uuid(lambda d: d.step_allocated),
        "uuid",
        source="torch.cuda.memory_stats allocated_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_limit_bytes",
        "Device memory that the allocator of torch may take: all of it, or the share that the program has set.",
        _by_uuid(lambda d: d.limit),
        "uuid",
        source="torch.cuda.get_device_properties, torch.cuda.get_per_process_memory_fraction",
    ),
    _process.gauge(
        "torch_memory_reserved_bytes",
        "Device memory that the caching allocator of torch holds, used or not.",
        _by_uuid(lambda d: d.reserved),
        "uuid",
        source="torch.cuda.memory_stats reserved_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_active_bytes",
        "Memory of blocks that are in use or wait for another stream to release them.",
        _by_uuid(lambda d: d.active),
        "uuid",
        source="torch.cuda.memory_stats active_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_inactive_split_bytes",
        "Free memory in split blocks, which cannot be returned to the device: fragmentation.",
        _by_uuid(lambda d: d.inactive_split),
        "uuid",
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
)

# Also exported for some minutes after the end of the process, so that the last interval is scraped.
LASTING: tuple[Metric, ...] = (
    _process.gauge(
        "torch_process_info",
        "Facts that a training process reports about itself, its pid in the daemon's pid namespace, and its "
        "job; always 1.",
        _info,
        *("pid", "container_pid", *_FACTS, *JOB_LABELS),
    ),
    _process.counter(
        "torch_steps_total",
        "Training steps, counted by the event in torch_step_source. Optimizers that step in one loop count like the "
        "one that steps most often; optimizers that are used one after another add up. Absent before the first step, "
        "and while no optimizer of torch is used and the program reports no steps.",
        training.steps,
        source="torch.optim.optimizer.register_optimizer_step_post_hook",
    ),
    _process.histogram(
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
    _process.counter(
        "torch_data_wait_seconds_total",
        "Time in which the training thread waited for batches, by the phase that they were for. The GPU can be busy in "
        "the meantime. Absent while no wait is known: the loader is not torch's, or another thread reads it.",
        lambda s: training.waits(s) or None,
        "phase",
        source="torch.utils.data.DataLoader, gpugauge.hook.batches, gpugauge.hook.waiting",
    ),
    _process.counter(
        "torch_samples_total",
        "Samples of the training: as the program reports them with gpugauge.hook.step(samples=), else in the training "
        "batches that were taken before the last step. Absent if the size of a batch is not known.",
        lambda s: _reported(s.snap.samples, s.record.samples if s.record else None) if s.snap else None,
        source="torch.utils.data.DataLoader, gpugauge.hook.step",
    ),
    _process.counter(
        "torch_tokens_total",
        "Tokens of the training: as the program reports them with gpugauge.hook.step(tokens=), else in the input_ids "
        "of the batches that torch_samples_total counts, padding included. Absent if a batch has none.",
        lambda s: _reported(s.snap.tokens, s.record.tokens if s.record else None) if s.snap else None,
        source="torch.utils.data.DataLoader, gpugauge.hook.step",
    ),
    _process.counter(
        "torch_model_flops_total",
        "Floating-point operations of the model in the steps of this process, forward and backward, by source: stated "
        "by the program, counted in one step, or 6 times the weights of a dense transformer for each token "
        "(parameters). Absent if they are not known.",
        lambda s: s.snap.flops if s.snap else None,
        "source",
        source="gpugauge.hook.flops, torch.utils.flop_counter",
    ),
    _process.counter(
        "torch_memory_alloc_retries_total",
        "Allocations that succeeded only after cached memory was released.",
        _by_uuid(lambda d: d.retries),
        "uuid",
        source="torch.cuda.memory_stats num_alloc_retries",
    ),
    _process.counter(
        "torch_memory_ooms_total",
        "Out-of-memory errors, including caught ones.",
        _by_uuid(lambda d: d.ooms),
        "uuid",
        source="torch.cuda.memory_stats num_ooms",
    ),
    _process.counter(
        "torch_memory_device_allocs_total",
        "Calls of the driver to allocate device memory, such as cudaMalloc.",
        _by_uuid(lambda d: d.device_allocs),
        "uuid",
        source="torch.cuda.memory_stats num_device_alloc",
    ),
    _process.counter(
        "torch_memory_device_frees_total",
        "Calls of the driver to free device memory, such as cudaFree.",
        _by_uuid(lambda d: d.device_frees),
        "uuid",
        source="torch.cuda.memory_stats num_device_free",
    ),
    _process.gauge(
        "training_start_timestamp_seconds",
        "Unix time of the first step, batch or watch() call of the process.",
        lambda s: s.hello.started,
    ),
    _process.gauge("training_last_step_timestamp_seconds", "Unix time of the last optimizer step.", training.last_step),
    _process.gauge(
        "training_end_timestamp_seconds",
        "Unix time at which the process ended or its connection was lost; absent while it is connected.",
        lambda s: s.ended_at,
    ),
    _process.counter(
        "gpugauge_hook_errors_total",
        "Errors of the hook itself inside the process; at 10 errors it disables itself.",
        lambda s: s.snap.errors if s.snap else None,
    ),
)
