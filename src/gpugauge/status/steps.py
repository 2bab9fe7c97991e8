"""What is not known of a training's loader, and what to change at it, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpugauge.base.text import whole
from gpugauge.status.words import duration
from gpugauge.verdict import loaders

LOADER_ADVICE = (
    "the waits for batches are not known: declare the loader with gpugauge.hook.batches() or gpugauge.hook.waiting()"
)
WAITING_RATIO = 0.5
"""A training on the CPU that waits for data for this share of its time is in trouble."""

# By reason, if another number of workers changes nothing.
_NO_NUMBER = {
    loaders.TOO_FEW_CPUS: "more loader workers will not help, the CPUs of the process are in use: give it more CPUs, "
    "or make decoding and collate cheaper",
    loaders.BUSY_CPUS: "the loader workers wait for CPUs that other processes of the machine use: reserve CPUs for the "
    "job",
    loaders.MEMORY: "more loader workers will not help, the memory is too small for them: give the job more memory, "
    "or keep less of the dataset in each worker",
    loaders.DELIVERY: "more loader workers will not help, the present ones are idle: raise prefetch_factor, return "
    "tensors and not lists or objects, make all batches equally large, and avoid very short epochs",
    loaders.SLOW_WORKER: "one loader worker is slower than the others and delays each round: check its part of the "
    "dataset, and the CPU it runs on",
    loaders.WORKER_START: "persistent_workers=True in DataLoader: its workers are started in each epoch",
}


def loader_advice(undecidable: Collection[str]) -> str:
    """Return what makes the causes of the loader decidable, "" if they are. `undecidable` are names of causes."""
    return LOADER_ADVICE if "data_loading" in undecidable else ""


def loader_change(
    options: Mapping[str, str],
    *,
    copied: bool = False,
    reason: str = "",
    recommended: int | None = None,
    batch_seconds: float | None = None,
) -> str:
    """Return what to change. `options` are those of `torch_loader_info`, `copied` whether pinned memory would help,
    `reason` and `recommended` the diagnosis, `batch_seconds` the loading of a batch. Without a diagnosis, the change
    names all that is not already so.
    """
    if reason in _NO_NUMBER:
        return _NO_NUMBER[reason]
    if not reason:
        return _undiagnosed(options, copied)
    present = options.get("workers", "")
    slow = f": a batch takes {duration(batch_seconds)} to load" if batch_seconds else ""
    if reason == loaders.SLOW_BATCHES and present == str(recommended):
        return f"make the dataset faster{slow}, and {present} loader workers are enough for this machine"
    text = f"{recommended} loader workers instead of {present}"
    if whole(present) is None:  # not a loader of torch
        text = f"load the batches in other processes: DataLoader with num_workers={recommended}"
    if reason == loaders.SLOW_BATCHES:
        text += f"; more would be too many for this machine, so make the dataset faster, too{slow}"
    if reason == loaders.STORAGE:
        text += ", if the storage serves several reads at once; otherwise faster storage"
    return text


def _undiagnosed(options: Mapping[str, str], copied: bool) -> str:
    workers = options.get("workers")
    changes = {None: "more loader workers", "0": "load batches in workers: set num_workers of the DataLoader (now 0)"}
    found = [changes.get(workers, f"more loader workers (now {workers})")]
    if copied and options.get("pin_memory") != "yes":
        found.append("pinned memory (pin_memory=True)" if options.get("pin_memory") else "pinned memory")
    if not options.get("prefetch") and workers != "0":  # without workers there is no prefetching
        found.append("prefetching")
    return ", ".join([*found, "faster storage or decoding"])
