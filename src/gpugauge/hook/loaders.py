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

from gpugauge.hook import elsewhere
from gpugauge.hook.batches import counted_iteration
from gpugauge.hook.counts import hot
from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.workers import SLOT_WORDS, FetchMeter, Meter, worker_meter
from gpugauge.hook.observer import Observer
from gpugauge.hook.wrappers import after, is_compiling, replace


def install(observer: Observer) -> None:
    """Wrap the calls of DataLoader and of its iterators, once in a process."""
    # An iterator has a run of its own from its first batch on, and the reader of its batches while they train.
    _BaseDataLoaderIter.gpugauge_run = _BaseDataLoaderIter.gpugauge_size = None
    _BaseDataLoaderIter.__next__ = hot.batch_wrapper(observer, _BaseDataLoaderIter.__next__, is_compiling)
    _listen_to_iterators(observer)
    _listen_to_subclasses(observer)
    _listen_to_workers(observer)


def _listen_to_iterators(observer: Observer) -> None:
    """Wrap the start of an iteration: it can start worker processes."""
    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def iterator(self: Any) -> Any:
        if is_compiling():
            return iterate(self)
        begun = observer.begin_wait()
        if begun is None:
            return elsewhere.take(observer, iterate, self, is_loader=True)
        try:
            return iterate(self)
        finally:
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


def _listen_to_workers(observer: Observer) -> None:
    """Wrap the fetches and the life of the workers, as far as this version of torch has these functions.

    A wrapper of the function that creates a fetcher runs in the training process and in each worker, however it was
    started. Nothing that is sent to a worker changes.
    """
    kinds = getattr(dataloader, "_DatasetKind", None)
    iterator = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if kinds is None or iterator is None:
        return
    replace(kinds, "create_fetcher", lambda function: staticmethod(_fetchers(observer, function)))
    replace(iterator, "__init__", lambda function: _starts(observer, function))
    replace(iterator, "_reset", lambda function: _epochs(observer, function))
    replace(iterator, "_shutdown_workers", lambda function: _ends(observer, function))


def _fetchers(observer: Observer, function: Any) -> Any:
    measured = weakref.WeakSet[type]()

    @functools.wraps(function)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = function(*args, **kwargs)
        if is_compiling():
            return fetcher
        try:
            if not observer.off:
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
    meter, on_thread = Meter([0] * SLOT_WORDS), observer.phases.on_training_thread
    return FetchMeter(lambda: meter if on_thread() else None, failed, meter.words)


def _starts(observer: Observer, function: Any) -> Any:
    @functools.wraps(function)
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if not observer.off:
                observer.state.loads.open(CLOCKS[0]())
        except Exception:
            observer.count_error()
        function(self, *args, **kwargs)

    return start


def _epochs(observer: Observer, function: Any) -> Any:
    @functools.wraps(function)
    def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            # For the first epoch, this is called when the workers have started and wait for their first batch.
            if not observer.off:
                observer.state.loads.begin_epoch(self, [worker.pid for worker in self._workers])
        except Exception:
            observer.count_error()
        return function(self, *args, **kwargs)

    return reset


def _ends(observer: Observer, function: Any) -> Any:
    clock = CLOCKS[0]  # Python sets the names of modules to None when it ends, before it ends the last iterators

    @functools.wraps(function)
    def shut_down(self: Any) -> Any:
        began = clock()
        try:
            return function(self)
        finally:
            try:
                if observer.phases.on_training_thread():
                    observer.state.loads.end_workers(self, clock() - began)
            except Exception:
                observer.count_error()

    return shut_down
