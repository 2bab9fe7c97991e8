"""Listeners to the loaders of torch: the waits for an iterator, and for each batch."""

from __future__ import annotations

import functools
import multiprocessing
import weakref
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import dataloader
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from gpugauge.hook import hot
from gpugauge.hook.batches import counted_iteration
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.observer import Observer
from gpugauge.hook.workers import SLOT_WORDS, FetchMeter, Meter, worker_meter
from gpugauge.hook.wrappers import after, before, is_compiling, replace


def install(observer: Observer) -> None:
    """Wrap the calls of DataLoader and of its iterators, once in a process."""
    # An iterator has a run of its own from its first batch on, and the reader of its batches while they train.
    _BaseDataLoaderIter.gpugauge_run = _BaseDataLoaderIter.gpugauge_size = None
    _BaseDataLoaderIter.__next__ = hot.batch_wrapper(observer, _BaseDataLoaderIter.__next__, is_compiling)
    replace(DataLoader, "__iter__", lambda function: _iterates(observer, function))
    _listen_to_subclasses(observer)
    _listen_to_workers(observer)


def _iterates(observer: Observer, function: Any) -> Any:
    @functools.wraps(function)
    def iterator(self: Any) -> Any:
        return function(self) if is_compiling() else observer.take_iterator(function, self)

    return iterator


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


def _listen_to_workers(observer: Observer) -> None:
    """Wrap the fetches and the life of the workers, as far as this version of torch has these functions. A wrapper of
    the function that creates a fetcher runs in the training process and in each worker, however it was started. Nothing
    that is sent to a worker changes.
    """
    kinds = getattr(dataloader, "_DatasetKind", None)
    iterator = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if kinds is None or iterator is None:
        return
    loads = observer.state.loads

    def resets(made: Any) -> None:
        # For the first epoch, this is called when the workers have started and wait for their first batch.
        loads.begin_epoch(made, [worker.pid for worker in made._workers])  # noqa: SLF001 - of torch

    replace(kinds, "create_fetcher", lambda function: staticmethod(_fetchers(observer, function)))
    replace(iterator, "__init__", lambda function: before(observer, function, lambda _: loads.open(CLOCKS[0]())))
    replace(iterator, "_reset", lambda function: before(observer, function, resets))
    replace(iterator, "_shutdown_workers", lambda function: _ends(observer, function))


def _fetchers(observer: Observer, function: Any) -> Any:
    measured = weakref.WeakSet[type]()

    @functools.wraps(function)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = function(*args, **kwargs)
        if is_compiling() or observer.off:
            return fetcher
        try:
            owner: Any
            for owner in type(fetcher).__mro__:
                if "fetch" in vars(owner) and owner not in measured:
                    measured.add(owner)
                    owner.fetch = _measured(owner.fetch)
            fetcher.gpugauge_meter = _meter(observer)
        except Exception:
            observer.count_error()
        return fetcher

    return create_fetcher


def _measured(function: Any) -> Any:
    @functools.wraps(function)
    def fetch(self: Any, index: Any) -> Any:
        meter = getattr(self, "gpugauge_meter", None)
        return function(self, index) if meter is None else meter.fetch(function, self, index)

    return fetch


def _meter(observer: Observer) -> FetchMeter:
    loads, failed = observer.state.loads, observer.count_error
    if torch.utils.data.get_worker_info() is not None:
        parent = getattr(multiprocessing.parent_process(), "pid", None)
        once = functools.lru_cache(lambda: worker_meter(loads.inherited, parent))
        return FetchMeter(once, failed)
    meter, on_thread = Meter([0] * SLOT_WORDS), observer.record.on_training_thread
    return FetchMeter(lambda: meter if on_thread() else None, failed, meter.words)


def _ends(observer: Observer, function: Any) -> Any:
    clock = CLOCKS[0]  # Python sets the names of modules to None when it ends, before it ends the last iterators

    @functools.wraps(function)
    def shut_down(self: Any) -> Any:
        began = clock()
        try:
            return function(self)
        finally:
            try:
                if observer.record.on_training_thread():
                    observer.state.loads.end_workers(self, clock() - began)
            except Exception:
                observer.count_error()

    return shut_down
