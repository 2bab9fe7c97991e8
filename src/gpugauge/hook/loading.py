"""Loaders that are not torch's, as the program declares them. Loaded by the program, also where no torch is."""

from __future__ import annotations

import sys
from _thread import get_ident  # the module threading is not loaded for this

from gpugauge.hook.counts.clock import CLOCKS

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from gpugauge.hook.observer import Observer


def current_observer() -> Observer | None:
    """Return the observer of this process, None in a process that is not watched."""
    module = sys.modules.get("gpugauge.hook.install")
    observer: Observer | None = getattr(module, "observer", None)
    return observer


class Batches:
    """An iterable whose waits and batches are counted. It has the length and the attributes of the iterable, raises
    what the iterable raises, and can be iterated as often as the iterable.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return _iterate(iter, self._iterable)

    def __next__(self) -> Any:
        """Return the next batch of an iterable that is an iterator."""
        if self._iterator is None:
            # next() raises its own error for an iterable that is no iterator.
            self._iterator = iter(self) if hasattr(self._iterable, "__next__") else self._iterable  # type: ignore[assignment]  # as above
        return next(self._iterator)  # type: ignore[arg-type]  # as above

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # it may have none, and len() raises its own error

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterable":
            raise AttributeError(name)  # copies and pickles look for special methods before the iterable is set
        return getattr(self._iterable, name)


def counted_iteration(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a wrapper of the method __iter__ whose iterators are counted."""

    def iterate(self: Any) -> Iterator[Any]:
        return _iterate(function, self)

    iterate.__wrapped__ = function  # type: ignore[attr-defined]  # as functools.wraps, which is not loaded for this
    return iterate


def _iterate(function: Callable[[Any], Iterator[Any]], iterable: Any) -> Iterator[Any]:
    observer = current_observer()
    begun = observer.begin_wait() if observer is not None else None
    try:
        iterator = function(iterable)
    finally:
        if observer is not None and begun is not None:
            observer.end_wait(*begun)
    # The iterators of DataLoader are counted themselves.
    return iterator if hasattr(iterator, "_num_workers") else _CountedIterator(iterator)


class _CountedIterator:
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        observer = current_observer()
        begun = observer.begin_wait() if observer is not None else None
        if observer is None or begun is None:
            return self._next_elsewhere(observer)
        try:
            batch = next(self._iterator)
        except BaseException:
            observer.end_wait(*begun, ended=True)
            raise
        observer.end_wait_with_batch(*begun)
        return batch

    def _next_elsewhere(self, observer: Observer | None) -> Any:
        """Return the next batch on a thread that does not train, inside another wait, or in an unwatched process."""
        if observer is None:
            return next(self._iterator)
        return take_elsewhere(observer, next, self._iterator)


def take_elsewhere(observer: Observer, take: Callable[[Any], Any], iterator: Any) -> Any:
    """Return the next batch of an iterator on a thread that does not train, or inside another wait, which covers it."""
    thread = get_ident()
    if thread in observer.waiting_elsewhere:
        return take(iterator)
    observer.waiting_elsewhere.add(thread)
    start = CLOCKS[0]()
    try:
        batch = take(iterator)
    except StopIteration:
        observer.on_end_elsewhere(start)
        raise
    finally:
        observer.waiting_elsewhere.discard(thread)
    observer.on_batch_elsewhere(start, iterator)
    return batch
