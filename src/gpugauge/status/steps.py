"""What is not known of a training's loader, and what to change at it, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpugauge.base.text import whole
from gpugauge.node.judged import Diagnosis
from gpugauge.status.words import duration
from gpugauge.verdict import loaders

WAITING_RATIO = 0.5
"""A training on the CPU that waits for data for this share of its time is in trouble."""


def loader_advice(undecidable: Collection[str]) -> str:
    """Return what makes the causes of the loader decidable, "" if they are. `undecidable` are names of causes."""
    declare = "declare the loader with gpugauge.hook.batches() or gpugauge.hook.waiting()"
    return f"the waits for batches are not known: {declare}" if "data_loading" in undecidable else ""


def diagnosed_change(options: Mapping[str, str], found: Diagnosis, batch_seconds: float | None) -> str:
    """Return what to change by a diagnosis. `options` are those of `torch_loader_info`, `batch_seconds` is the time of
    loading a batch.
    """
    if found.reason in loaders.CHANGES:
        return loaders.CHANGES[found.reason]
    present, recommended, slow = options.get("workers", ""), found.workers, ""
    if found.reason == loaders.SLOW_BATCHES and batch_seconds:
        slow = f": a batch takes {duration(batch_seconds)} to load"
    if found.reason == loaders.SLOW_BATCHES and present == str(recommended):
        return f"make the dataset faster{slow}, and {present} loader workers are enough for this machine"
    text = f"{recommended} loader workers instead of {present}"
    if whole(present) is None:  # not a loader of torch
        text = f"load the batches in other processes: DataLoader with num_workers={recommended}"
    return text + loaders.MORE.get(found.reason, "") + slow


def loader_change(options: Mapping[str, str], *, copied: bool) -> str:
    """Return all that is not already so, without a diagnosis; `copied` is whether pinned memory would help."""
    workers = options.get("workers")
    changes = {None: "more loader workers", "0": "load batches in workers: set num_workers of the DataLoader (now 0)"}
    found = [changes.get(workers, f"more loader workers (now {workers})")]
    if copied and options.get("pin_memory") != "yes":
        found.append("pinned memory (pin_memory=True)" if options.get("pin_memory") else "pinned memory")
    if not options.get("prefetch") and workers != "0":  # without workers there is no prefetching
        found.append("prefetching")
    return ", ".join([*found, "faster storage or decoding"])
