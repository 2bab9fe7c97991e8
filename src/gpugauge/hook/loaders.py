"""Listeners to loaders: the waits for an iterator, and for each batch, of torch's DataLoader and of others."""

from __future__ import annotations

import functools
import multiprocessing
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch.utils.data
from torch.utils.data import dataloader
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from gpugauge.hook import hot
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.record import TRAINING
from gpugauge.hook.workers import SLOT_WORDS, Meter, worker_place
from gpugauge.hook.wrappers import Wrap, after, around, is_compiling, replace

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer


def install(observer: Observer) -> None:
    """Wrap the calls of DataLoader, of its iterators, and of the functions of its workers, once in a process."""
    loads, clock, counted = observer.state.loads, CLOCKS[0], weakref.WeakSet[type]()

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
    wrappers: dict[str, Wrap] = {
        "_BaseDataLoaderIter.__next__": lambda function: hot.batch_wrapper(observer, function, is_compiling),
        "DataLoader.__iter__": iterating(observer.take_iterator),
        "DataLoader.__init__": after(observer, functools.partial(_count_own, observer, counted)),
        "_utils.fetch._MapDatasetFetcher.fetch": _measured(observer),
        "_utils.fetch._IterableDatasetFetcher.fetch": _measured(observer),
        "_MultiProcessingDataLoaderIter.__init__": around(observer, lambda *_, **__: loads.open(clock())),
        "_MultiProcessingDataLoaderIter._reset": around(observer, resets),
        "_MultiProcessingDataLoaderIter._shutdown_workers": around(observer, shuts_down),
    }
    for path, wrap in wrappers.items():
        replace(dataloader, path, wrap)


def iterating(take: Callable[[Callable[[Any], Any], Any], Any]) -> Wrap:
    """Return a decorator of the method __iter__ of loaders, by which `take` calls it."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def iterate(self: Any) -> Any:
            return function(self) if is_compiling() else take(function, self)

        return iterate

    return wrap


def _count_own(observer: Observer, counted: weakref.WeakSet[type], loader: Any) -> None:
    """Count the batches of a subclass with an iteration of its own, which can be slower than that of DataLoader."""
    for owner in type(loader).__mro__:
        if owner is DataLoader:
            break
        if owner not in counted:
            counted.add(owner)
            replace(owner, "__iter__", iterating(observer.iterate))


def _measured(observer: Observer) -> Wrap:
    """Return a decorator of the function that loads a batch, in the training process and in each worker."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def fetch(self: Any, index: Any) -> Any:
            meter = getattr(self, "gpugauge_meter", None)
            if meter is None and not observer.off and not is_compiling():
                try:
                    meter = self.gpugauge_meter = _meter(observer)
                except Exception:
                    observer.count_error()
            return function(self, index) if meter is None else meter.fetch(function, self, index)

        return fetch

    return wrap


def _meter(observer: Observer) -> Meter:
    loads, on_thread = observer.state.loads, observer.record.on_training_thread
    if torch.utils.data.get_worker_info() is not None:
        parent = getattr(multiprocessing.parent_process(), "pid", None)
        find = functools.lru_cache(lambda: worker_place(loads.inherited, parent))
        return Meter(find, observer.count_error, whole=True)
    words = [0] * SLOT_WORDS
    return Meter(lambda: (words, 0) if on_thread() else None, observer.count_error)


class _Proxy:
    """To the program, it is the object inside: its class, its attributes. Copies and pickles are of that object."""

    __slots__ = ("__weakref__", "_gpugauge_inside", "_gpugauge_observer", "gpugauge_run")

    def __init__(self, observer: Observer, inside: Any) -> None:
        object.__setattr__(self, "_gpugauge_inside", inside)
        object.__setattr__(self, "_gpugauge_observer", observer)
        object.__setattr__(self, "gpugauge_run", None)

    @property  # type: ignore[misc]  # for isinstance()
    def __class__(self) -> type:
        return type(self._gpugauge_inside)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpugauge_inside, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._gpugauge_inside, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._gpugauge_inside, name)

    def __dir__(self) -> list[str]:
        return dir(self._gpugauge_inside)

    def __repr__(self) -> str:
        return repr(self._gpugauge_inside)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._gpugauge_inside.__reduce_ex__(protocol)


class CountedIterable(_Proxy):
    """A loader that the program declares."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._gpugauge_observer.iterate(iter, self._gpugauge_inside)
        return found

    def __len__(self) -> int:
        return len(self._gpugauge_inside)

    def __bool__(self) -> bool:
        return bool(self._gpugauge_inside)


class CountedIterator(_Proxy):
    """An iterator whose batches are counted, and the waits for them."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        observer, iterator = self._gpugauge_observer, self._gpugauge_inside
        begun: tuple[int, int] | None = observer.begin_wait()
        if begun is None:
            return observer.take_elsewhere(next, iterator)
        observer.inner, own = (lambda: None), observer.state.loads.own
        own.begin(begun[1])
        try:
            batch = next(iterator)
        except BaseException:
            observer.end_wait(*begun, self)
            raise
        if observer.record.base == TRAINING:  # that of the first batch of another phase is not known yet
            own.end(begun[1])
        observer.end_wait_with_batch(*begun, None, self, batch)
        return batch


class CountedSizedIterator(CountedIterator):
    """An iterator that has a length, by which it is also true or false."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._gpugauge_inside)
