"""Listeners to the loaders of torch: the waits for an iterator, and for each batch."""

from __future__ import annotations

import functools
import multiprocessing
import weakref
from collections.abc import Callable
from typing import Any

import torch.utils.data
from torch.utils.data import dataloader
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from gpugauge.hook import hot
from gpugauge.hook.batches import counted_iteration
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.observer import Observer
from gpugauge.hook.workers import SLOT_WORDS, FetchMeter, Meter, worker_meter
from gpugauge.hook.wrappers import after, around, is_compiling, replace


def install(observer: Observer) -> None:
    """Wrap the calls of DataLoader, of its iterators, and of the functions of its workers, once in a process."""
    loads, clock = observer.state.loads, CLOCKS[0]

    def iterates(function: Any) -> Any:
        @functools.wraps(function)
        def iterator(self: Any) -> Any:
            return function(self) if is_compiling() else observer.take_iterator(function, self)

        return iterator

    def resets(iterator: Any, *_: Any, **__: Any) -> None:
        # For the first epoch, this is called when the workers have started and wait for their first batch.
        loads.begin_epoch(iterator, [worker.pid for worker in iterator._workers])  # noqa: SLF001 - of torch

    def shuts_down(iterator: Any) -> Callable[[], None]:
        began = clock()

        def end() -> None:
            if observer.record.on_training_thread():
                loads.end_workers(iterator, clock() - began)

        return end

    # An iterator has a run of its own from its first batch on, and the reader of its batches while they train.
    _BaseDataLoaderIter.gpugauge_run = _BaseDataLoaderIter.gpugauge_size = None
    for path, wrap in {
        "_BaseDataLoaderIter.__next__": lambda function: hot.batch_wrapper(observer, function, is_compiling),
        "DataLoader.__iter__": iterates,
        "DataLoader.__init__": after(observer, functools.partial(_count_own, weakref.WeakSet[type]())),
        "_DatasetKind.create_fetcher": lambda function: staticmethod(_fetchers(observer, function)),
        "_MultiProcessingDataLoaderIter.__init__": around(observer, lambda *_, **__: loads.open(clock())),
        "_MultiProcessingDataLoaderIter._reset": around(observer, resets),
        "_MultiProcessingDataLoaderIter._shutdown_workers": around(observer, shuts_down),
    }.items():
        replace(dataloader, path, wrap)


def _count_own(counted: weakref.WeakSet[type], loader: Any) -> None:
    """Count the batches of a subclass with an iteration of its own, which can be slower than that of DataLoader."""
    for owner in type(loader).__mro__:
        if owner is DataLoader:
            break
        if owner not in counted:
            counted.add(owner)
            replace(owner, "__iter__", counted_iteration)


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
