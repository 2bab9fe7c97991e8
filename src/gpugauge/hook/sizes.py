"""The size of a batch of a DataLoader, read from the shape of its first tensor. No value of a tensor is read.

The first batch of an iterator decides how the batches of that iterator are read: one that does not hold as many samples
as the loader puts into a batch (a graph, a packed sequence) leaves them unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpugauge.hook.counts.work import Size

Reader = Callable[[Any], Size]
_TOKENS = "input_ids"
_MAX_DEPTH = 4


def learn(iterator: Any, batch: Any) -> Size:
    """Return the size of the first batch of an iterator, and store the reader of those that follow."""
    reader: Reader = _unknown
    try:
        reader = reader_of(batch, batch_size(iterator))
        iterator.gpugauge_size = reader
    except Exception:
        pass  # an iterator without attributes of its own: each batch is the first one
    return reader(batch)


def batch_size(iterator: Any) -> int | None:
    """Return the samples in the first batch of an iterator of DataLoader, None if the loader does not make batches."""
    sampler = getattr(iterator, "_index_sampler", None)
    size = getattr(sampler, "batch_size", None)
    if not getattr(iterator, "_auto_collation", False) or not isinstance(size, int):
        return None
    try:
        return min(size, len(sampler.sampler))  # type: ignore[union-attr]  # without it there is no size
    except Exception:
        return size  # the length of a stream is not known


def reader_of(batch: Any, samples: int | None) -> Reader:
    """Return the function that reads the size of batches like this one, which has `samples` samples if known."""
    if isinstance(batch, Mapping) and isinstance(batch.get(_TOKENS), torch.Tensor) and batch[_TOKENS].dim():
        return _tokens(samples if samples == batch[_TOKENS].shape[0] else None)
    path = _path(batch)
    shape = () if path is None else _at(batch, path).shape
    if path is None or samples is None or not shape or shape[0] != samples:
        return _unknown
    if len(path) == 1:
        return _samples_at(path[0], samples)
    return lambda later: _checked(later, path, samples)


def _unknown(_: Any) -> None:
    return None


def _samples_at(key: Any, most: int) -> Reader:
    """Return the reader for the usual batch, a list or mapping of tensors: it runs at every batch."""

    def read(batch: Any) -> int | None:
        try:
            count: int = batch[key].shape[0]
        except Exception:
            return None
        return count if count <= most else None

    return read


def _checked(batch: Any, path: tuple[Any, ...], most: int) -> int | None:
    try:
        count: int = _at(batch, path).shape[0]
    except Exception:
        return None
    return count if count <= most else None


def _tokens(most: int | None) -> Reader:
    def read(batch: Any) -> Size:
        try:
            shape = batch[_TOKENS].shape
            samples = shape[0] if most is not None and shape[0] <= most else None
            return samples, shape.numel()
        except Exception:
            return None

    return read


def _path(batch: Any, depth: int = 0) -> tuple[Any, ...] | None:
    """Return the keys that lead to the first tensor of a batch, None without one."""
    if isinstance(batch, torch.Tensor):
        return ()
    if depth < _MAX_DEPTH and isinstance(batch, (Mapping, list, tuple)):
        for key, part in batch.items() if isinstance(batch, Mapping) else enumerate(batch):
            found = _path(part, depth + 1)
            if found is not None:
                return (key, *found)
    return None


def _at(batch: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        batch = batch[key]
    return batch
