"""The samples and tokens in a batch of a DataLoader, from the shapes of its tensors. No value of a tensor is read.

The first batch of an iterator decides how its batches are read. Batches that torch collates have one sample in each row
of each tensor. Of others, the first one must have as many rows as the loader puts samples into a batch: where it has
not (graphs, packed sequences), the samples are unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import data

from gpugauge.hook.counts.record import RecordMemory
from gpugauge.wire.record import SAMPLES, STEPS, TOKENS


class Work:
    """`samples` and `tokens` of all batches that the training thread has taken to train on, and the words `unknown`
    because a batch did not show its size. count() stores both in the shared record, at each step.
    """

    __slots__ = ("_record", "_reported", "samples", "tokens", "unknown")

    def __init__(self, record: RecordMemory) -> None:
        self._record = record
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.samples = self.tokens = 0
        self.unknown: set[int] = set()
        self._reported: set[int] = set()

    def count(self) -> None:
        """Count the batches that were taken before a step. Batches after the last step do not count."""
        words = self._record.words
        for word, taken in ((SAMPLES, self.samples), (TOKENS, self.tokens)):
            if word not in self._reported:
                words[word] = taken

    def report(self, word: int, count: int) -> None:
        """Add what the program reports with a step. From the first report on, only reports count."""
        words = self._record.words
        if word not in self._reported:
            self._reported.add(word)
            # An optimizer of torch made the same step before, and the batches of that step are counted.
            if words[word] and words[STEPS]:
                words[word] = count if words[STEPS] == 1 else words[word]
                return
        words[word] += count

    def take(self, other: Work) -> None:
        """Add batches that have turned out to be for the training."""
        self.samples += other.samples
        self.tokens += other.tokens
        self.unknown |= other.unknown

    def add(self, other: Work) -> None:
        """Add the batches of a thread that has turned out to be the one that trains, in place of those that the thread
        before has taken since the last step.
        """
        words = self._record.words
        self.samples, self.tokens = min(self.samples, words[SAMPLES]), min(self.tokens, words[TOKENS])
        self.take(other)

    def reports(self, word: int) -> bool:
        """Return whether the program reports a count itself."""
        return word in self._reported

    def counted(self, word: int) -> int | None:
        """Return the count of a word; None if it is not known, and before the first step with a batch."""
        count = self._record.words[word]
        return count if word in self._reported or (count and word not in self.unknown) else None


# Adds the size of a batch to the work, or marks it as unknown there.
Reader = Callable[[Any, Work], None]
_INPUT_IDS = "input_ids"
_BOTH = frozenset((SAMPLES, TOKENS))
_MAX_DEPTH = 4
_NO_LIMIT = 1 << 53
_default_collate = getattr(data, "default_collate", object())
# In C, and without the object that `shape` returns. It is 0 also for a tensor without dimensions.
_length = getattr(torch.Tensor.__base__, "__len__", len)


def reader(iterator: Any, batch: Any, work: Work) -> Reader:
    """Return the reader of the batches of an iterator, from the first one. `work` is that of these batches."""
    try:
        if not (isinstance(batch, Mapping) and _INPUT_IDS in batch):
            work.unknown.add(TOKENS)
        return _reader(batch, *_expected(iterator))
    except Exception:
        return unknown_size


def unknown_size(_: Any, work: Work) -> None:
    """Mark the samples and tokens as unknown."""
    work.unknown |= _BOTH


def _expected(iterator: Any) -> tuple[int | None, int]:
    """Return the samples of the first batch, None if they are not known, and the most samples of a later one."""
    if not getattr(iterator, "_auto_collation", False):
        return None, 0
    sampler = getattr(iterator, "_index_sampler", None)
    size = getattr(sampler, "batch_size", None)
    with contextlib.suppress(Exception):  # a stream has no length, and some samplers have no size
        size = min(size, len(sampler.sampler))  # type: ignore[union-attr, type-var]  # as above
    if getattr(iterator, "_collate_fn", None) is _default_collate:
        return -1, _NO_LIMIT
    return (size, size) if isinstance(size, int) else (None, 0)


def _reader(batch: Any, samples: int | None, most: int) -> Reader:
    """Return the reader of batches like this one, which has `samples` samples: -1 for as many as it has rows."""
    ids = batch.get(_INPUT_IDS) if isinstance(batch, Mapping) else None
    path = (_INPUT_IDS,) if isinstance(ids, torch.Tensor) and ids.dim() else _path(batch)
    tensor = None if path is None else _at(batch, path)
    if path is None or tensor is None or not tensor.dim():
        return unknown_size
    known = samples in (-1, tensor.shape[0])
    if tensor is ids:
        return _tokens(most if known else 0)
    if not known:
        return unknown_size
    return _rows(path[0] if path else None, most) if len(path) < 2 else _rows_at(path, most)


def _rows(key: Any, most: int) -> Reader:
    """Return the reader for the usual batch, a tensor (key None), list or mapping of them: it runs at every batch."""
    length = _length

    def read(batch: Any, work: Work) -> None:
        try:
            tensor = batch if key is None else batch[key]
            count: int = length(tensor)
            if count < 1:
                count = tensor.shape[0]
        except Exception:
            count = most + 1
        if count > most:
            work.unknown.add(SAMPLES)
        work.samples += count

    return read


def _rows_at(path: tuple[Any, ...], most: int) -> Reader:
    rows = _rows(None, most)
    return lambda batch, work: rows(_tensor(batch, path), work)


def _tokens(most: int) -> Reader:
    """Return the reader for batches with token ids. `most` is 0 if its rows are no samples."""

    def read(batch: Any, work: Work) -> None:
        ids = _tensor(batch, (_INPUT_IDS,))
        if ids is None:
            unknown_size(batch, work)
            return
        count = ids.shape[0]
        if count > most:
            work.unknown.add(SAMPLES)
        work.samples += count
        work.tokens += ids.numel()

    return read


def _tensor(batch: Any, path: tuple[Any, ...]) -> Any:
    try:
        found = _at(batch, path)
    except Exception:
        return None
    return found if isinstance(found, torch.Tensor) and found.dim() else None


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
