"""The loader of a simulated training: the times of its batches, as the hook measures them in the loading processes."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.simulator.device.pipeline import EPOCH, Pipeline
from gpugauge.wire import messages as wire

_COMPARED = 10  # batches of each worker, before the hook compares them
_WORKER_BYTES = 600 << 20  # memory that a loader worker does not share


@dataclass(frozen=True)
class Batch:
    """Seconds of the loading of one batch: work, waits for storage or swap, and waits for a CPU, also by a quota."""

    cpu: float
    storage: float
    queued: float


def batch(p: Pipeline) -> Batch:
    """Return the mean times of a batch of a steady run."""
    limited = p.workers > 0 and p.cpu_interval >= p.step - p.restart_seconds
    # Where the CPUs are the limit, each worker has a batch all the time, and waits while others run.
    mean, granted = p.mean_worker, p.load_cpu / p.cpu_quota
    crowded = max(0.0, p.workers * p.cpu_interval - p.load_seconds * mean) if limited else 0.0
    return Batch(p.load_cpu * mean, (p.load_seconds - granted) * mean, (granted - p.load_cpu) * mean + crowded)


def report(p: Pipeline, batches: int, steps: int) -> wire.Loader | None:
    """Return the loader of a snapshot after so many batches and steps; None before the first batch."""
    if not batches:
        return None
    # The first batch of each process is not measured.
    one, measured = batch(p), max(0, batches - max(1, p.workers))
    waited = p.host * (1.0 / p.cpu_quota - 1.0) + (0.0 if p.workers else one.queued)
    epochs = 1 + batches // EPOCH if p.restart else 1
    return wire.Loader(
        batches=batches,
        measured=measured,
        cpu_seconds=one.cpu * measured,
        threads_seconds=0.0,
        queued_seconds=one.queued * measured,
        storage_seconds=one.storage * measured,
        blocked_seconds=0.0,
        epochs=epochs,
        starts=epochs if p.workers else 0,
        start_seconds=p.restart_seconds * batches,
        slowest=1.0 / p.straggler if p.workers > 1 and batches >= _COMPARED * p.workers else None,
        worker_bytes=_WORKER_BYTES if p.workers else None,
        process_cpu_seconds=p.thread_cpu * steps,
        thread_queued_seconds=waited * steps,
    )
