"""Metric rows of the loading of batches: where their time goes, and the loader workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpugauge.metric import Metric, Table, by
from gpugauge.node import training
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire

_process = Table[Session]("process")
_T = TypeVar("_T")


def _loader(read: Callable[[wire.Loader], _T]) -> Callable[[Session], _T | None]:
    return lambda session: read(loader) if (loader := training.loader(session)) else None


LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "torch_loader_slowest_worker_ratio",
        "Speed of the slowest loader worker of the training as a share of the median of the others.",
        training.slowest_worker,
    ),
    _process.gauge(
        "torch_loader_worker_memory_bytes",
        "Resident memory of the largest loader worker that it does not share with other processes.",
        _loader(lambda loader: loader.worker_bytes),
        source="/proc/PID/statm",
    ),
    _process.gauge(
        "torch_cpus",
        "CPUs on which the process can run, divided by the ranks of the host unless they are bound to some CPUs.",
        training.cpus,
        source="sched_getaffinity(2), LOCAL_WORLD_SIZE",
    ),
)

LASTING: tuple[Metric, ...] = (
    BATCHES := _process.counter(
        "torch_loader_batches_total",
        "Batches that were loaded for the training, in loader workers or in the training thread. Absent while several "
        "loaders serve it at the same time.",
        _loader(lambda loader: loader.batches),
        source="torch.utils.data._utils.fetch",
    ),
    MEASURED := _process.counter(
        "torch_loader_measured_batches_total",
        "Part of torch_loader_batches_total that torch_loader_seconds_total covers: all but the first of each worker.",
        _loader(lambda loader: loader.measured),
    ),
    SECONDS := _process.counter(
        "torch_loader_seconds_total",
        "Time of loading batches, by part: CPU time of the loading thread (cpu), waits for a CPU (runqueue), waits "
        "in batches that read from storage (storage), all other waits (blocked); beside them the CPU time of other "
        "threads of the loader workers (threads).",
        _loader(
            lambda loader: by(
                cpu=loader.cpu_seconds,
                threads=loader.threads_seconds,
                runqueue=loader.queued_seconds,
                storage=loader.storage_seconds,
                blocked=loader.blocked_seconds,
            )
        ),
        "part",
        source="getrusage(2), /proc/PID/schedstat",
    ),
    _process.counter(
        "torch_loader_epochs_total",
        "Iterations over the loader of the training that have begun.",
        _loader(lambda loader: loader.epochs),
    ),
    _process.counter(
        "torch_loader_starts_total",
        "Starts of the loader workers of the training: one in each epoch without persistent_workers.",
        _loader(lambda loader: loader.starts),
    ),
    _process.counter(
        "torch_loader_start_seconds_total",
        "Time in which the training thread waited for the start and for the end of loader workers.",
        _loader(lambda loader: loader.start_seconds),
    ),
    _process.counter(
        "torch_process_cpu_seconds_total",
        "CPU time of the training process, without its children.",
        _loader(lambda loader: loader.process_cpu_seconds),
        source="getrusage(2)",
    ),
    _process.counter(
        "torch_thread_runqueue_seconds_total",
        "Time in which the training thread could have run and waited for a CPU.",
        _loader(lambda loader: loader.thread_queued_seconds),
        source="/proc/PID/schedstat",
    ),
)
