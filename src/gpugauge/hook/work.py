"""The work of the steps: samples and tokens, from the shapes of the tensors in batches, and model FLOPs. The first
batch of an iterator decides. What torch collates has one sample in each row of each tensor. Of other batches, the first
one must have as many rows as the loader puts samples into it: where it has not (graphs, packed sequences), they are
unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils import data

from gpugauge.hook.record import Record
from gpugauge.wire.messages import FLOP_SOURCES
from gpugauge.wire.record import SAMPLES, STEPS, TOKENS


class Work:
    """`samples` and `tokens` of all batches that the training thread has taken to train on, and the words `unknown`
    because a batch did not show its size. count() stores both in the shared record, at each step.
    """

    __slots__ = ("_record", "reported", "samples", "tokens", "unknown")

    def __init__(self, record: Record) -> None:
        self._record = record
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.samples = self.tokens = 0
        self.unknown: set[int] = set()
        self.reported: set[int] = set()

    def count(self) -> None:
        """Count the batches that were taken before a step. Batches after the last step do not count."""
        words = self._record.words
        for word, taken in ((SAMPLES, self.samples), (TOKENS, self.tokens)):
            if word not in self.reported:
                words[word] = taken

    def report(self, word: int, count: int) -> None:
        """Add what the program reports with a step. From the first report on, only reports count."""
        words = self._record.words
        if word not in self.reported:
            self.reported.add(word)
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
        """Add the batches of a thread that has begun to train, in place of those that the one before took ahead."""
        words = self._record.words
        self.samples, self.tokens = min(self.samples, words[SAMPLES]), min(self.tokens, words[TOKENS])
        self.take(other)

    def counted(self, word: int) -> int | None:
        """Return the count of a word; None if it is not known, and before the first step with a batch."""
        count = self._record.words[word]
        return count if word in self.reported or (count and word not in self.unknown) else None


# Adds the size of a batch to the work, or marks it as unknown there.
Reader = Callable[[Any, Work], None]
_INPUT_IDS = "input_ids"
_BOTH = frozenset((SAMPLES, TOKENS))
_MAX_PARTS = 64  # of a batch, among which a tensor is looked for
_NO_LIMIT = 1 << 53
_default_collate = getattr(data, "default_collate", object())
# In C, and without the object that `shape` returns. It is 0 also for a tensor without dimensions.
_length = getattr(torch.Tensor.__base__, "__len__", len)


def reader(iterator: Any, batch: Any, work: Work) -> Reader:
    """Return the reader of the batches of an iterator, from the first one. `work` is that of these batches."""
    try:
        ids = batch[_INPUT_IDS] if isinstance(batch, Mapping) and _INPUT_IDS in batch else None
        if ids is None:
            work.unknown.add(TOKENS)
        samples, most = _expected(iterator)
        found = ((_INPUT_IDS,), ids) if isinstance(ids, torch.Tensor) and ids.dim() else first_tensor(batch)
        if found is None:
            return unknown_size
        path, tensor = found
        known = samples in (-1, tensor.shape[0])
        return _sizes(path, most if known else 0, tensor is ids) if known or tensor is ids else unknown_size
    except Exception:
        return unknown_size


def unknown_size(_: Any, work: Work) -> None:
    """Mark the samples and tokens as unknown."""
    work.unknown |= _BOTH


def batch_size(iterator: Any) -> tuple[Any, Any]:
    """Return the size of the batches of an iterator of DataLoader, and the sampler of their samples."""
    sampler = getattr(iterator, "_index_sampler", None)
    inner = getattr(sampler, "sampler", None)
    if not hasattr(sampler, "batch_size") and hasattr(inner, "batch_size"):
        sampler = inner  # the loaders of timm and Ultralytics repeat the sampler without an end
    return getattr(sampler, "batch_size", None), getattr(sampler, "sampler", None)


def _expected(iterator: Any) -> tuple[int | None, int]:
    """Return the samples of the first batch, -1 for as many as it has rows, and the most samples of a later one."""
    if not getattr(iterator, "_auto_collation", False):
        return None, 0
    size, sampler = batch_size(iterator)
    with contextlib.suppress(Exception):  # a stream has no length, and some samplers have no size
        size = min(size, len(sampler))
    if getattr(iterator, "_collate_fn", None) is _default_collate:
        return -1, _NO_LIMIT
    return (size, size) if isinstance(size, int) else (None, 0)


def _sizes(path: tuple[Any, ...], most: int, tokens: bool) -> Reader:
    """Return the reader that runs at every batch. `most` is 0 if the rows of the tensor at `path` are no samples."""
    length = _length

    def read(batch: Any, work: Work) -> None:
        try:
            for key in path:
                batch = batch[key]
            count: int = length(batch)
            if count < 1:
                count = batch.shape[0]
            if tokens:
                work.tokens += batch.numel()
        except Exception:
            unknown_size(batch, work)
            return
        if count > most:
            work.unknown.add(SAMPLES)
        work.samples += count

    return read


def first_tensor(batch: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Return the keys that lead to the first tensor of a batch, and the tensor; None without one."""
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), batch)]
    for path, part in islice(waiting, _MAX_PARTS):  # grows meanwhile
        if isinstance(part, torch.Tensor):
            return path, part
        if isinstance(part, (Mapping, list, tuple)):
            items = part.items() if isinstance(part, Mapping) else enumerate(part)
            waiting += [((*path, key), each) for key, each in islice(items, _MAX_PARTS)]
    return None


STATED, COUNTED, PARAMETERS = FLOP_SOURCES


class ModelFlops:
    """Sums by source. Of the sources that are known, the first one in FLOP_SOURCES counts."""

    def __init__(self) -> None:
        self._per: dict[str, float] = {}  # by source: the FLOPs of a step, for PARAMETERS those of a token
        self.clear()

    def clear(self) -> None:
        """Start from zero, with what is known about the model kept: in a forked child."""
        self.sums: dict[str, float] = {}
        self._steps = self._tokens = 0  # that are counted

    @property
    def source(self) -> str | None:
        """The source that counts, None if none is known."""
        return next((source for source in FLOP_SOURCES if source in self._per), None)

    def know(self, source: str, per: float | None, steps: int, tokens: int | None) -> None:
        """Take the FLOPs of a step, or of a token; None if they are no longer known. What the program states holds from
        now on, the others for the steps before, too, if no source was known.
        """
        self.advance(steps, tokens)
        if per is None:
            self._per.pop(source, None)
        else:
            self._per[source] = per
        if source == STATED:
            self._steps, self._tokens = steps, tokens or 0

    def advance(self, steps: int, tokens: int | None) -> None:
        """Count the steps and tokens until now; `tokens` is None if they are not known."""
        source = self.source
        if source is None:
            return
        new = max(0, (tokens or 0) - self._tokens if source == PARAMETERS else steps - self._steps)
        if new:
            self.sums[source] = self.sums.get(source, 0.0) + self._per[source] * new
        self._steps, self._tokens = max(self._steps, steps), max(self._tokens, tokens or 0)
