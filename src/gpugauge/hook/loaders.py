"""Listeners to the loaders of torch: the waits for an iterator, and for each batch."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

import torch
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.phases import EVALUATING, LOADING, TRAINING
from gpugauge.hook.loading import counted_iteration, take_elsewhere
from gpugauge.hook.observer import Observer
from gpugauge.hook.wrappers import after, replace
from gpugauge.wire.record import BATCHES, WAITED


def install(observer: Observer) -> None:
    """Wrap the calls of DataLoader and of its iterators, once in a process."""
    _listen_to_batches(observer)
    _listen_to_iterators(observer)
    _listen_to_subclasses(observer)


def _listen_to_batches(observer: Observer) -> None:
    """Wrap the wait for a batch. This runs at every batch, so it does as little as possible."""
    (clock, _), track, record, waits = CLOCKS, observer.phases, observer.state.record, observer.state.waits
    ended, thread, grad_enabled = observer.recorder.waits.append, threading.get_ident, torch.is_grad_enabled
    wait = _BaseDataLoaderIter.__next__

    @functools.wraps(wait)
    def next_batch(self: Any) -> Any:
        before, exposed = track.current, waits.used
        if thread() != track.thread or (before == LOADING and not track.declared):
            return take_elsewhere(observer, wait, self)
        start = clock()
        try:
            track.switch(LOADING, start)
            if exposed:
                waits.begin()
        except Exception:
            observer.count_error()
        try:
            batch = wait(self)
        except BaseException:
            observer.end_wait(before, start, ended=True)
            raise
        try:
            now = clock()
            due = now >= observer.batch_due
            base = TRAINING if (observer.is_training_batch(self) if due else grad_enabled()) else EVALUATING
            phase = track.end_wait(base, before, now)
            if before == LOADING:
                start = now  # a wait that the program declares covers this one
            ended((start, now, phase))
            words = record.words
            words[BATCHES] += 1
            words[WAITED + phase] += now - start
            if exposed:
                waits.end(now, now - start)
            if due or phase != TRAINING:
                observer.on_batch(phase, now)
        except Exception:
            observer.count_error()
        return batch

    _BaseDataLoaderIter.__next__ = next_batch


def _listen_to_iterators(observer: Observer) -> None:
    """Wrap the start of an iteration: it can start worker processes."""
    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def iterator(self: Any) -> Any:
        begun = observer.begin_wait()
        try:
            return iterate(self)
        finally:
            if begun is not None:
                observer.end_wait(*begun)

    DataLoader.__iter__ = iterator


def _listen_to_subclasses(observer: Observer) -> None:
    """Count the batches of subclasses with an iteration of their own, which can be slower than that of DataLoader."""
    counted = weakref.WeakSet[type]()

    def created(loader: Any) -> None:
        for owner in type(loader).__mro__:
            if owner is DataLoader:
                break
            if "__iter__" in vars(owner) and owner not in counted:
                counted.add(owner)
                replace(owner, "__iter__", counted_iteration)

    replace(DataLoader, "__init__", lambda function: after(observer, function, created))
