"""Loaders that are not torch's, as the program declares them. Loaded by the program, also where no torch is."""

from __future__ import annotations

import sys

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
    iterator = function(iterable) if observer is None else observer.take_iterator(function, iterable)
    if hasattr(iterator, "_num_workers"):
        return iterator  # the iterators of DataLoader are counted themselves
    counted = _CountedSizedIterator if hasattr(iterator, "__len__") else _CountedIterator
    return counted(iterator)


class _CountedIterator:
    """To the program, it is the iterator: its class, its attributes. Copies and pickles are those of the iterator."""

    __slots__ = ("__weakref__", "_gpugauge_iterator", "gpugauge_run")

    def __init__(self, iterator: Iterator[Any]) -> None:
        object.__setattr__(self, "_gpugauge_iterator", iterator)
        object.__setattr__(self, "gpugauge_run", None)

    @property  # type: ignore[misc]  # for isinstance()
    def __class__(self) -> type:
        return type(self._gpugauge_iterator)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpugauge_iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._gpugauge_iterator, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._gpugauge_iterator, name)

    def __dir__(self) -> list[str]:
        return dir(self._gpugauge_iterator)

    def __repr__(self) -> str:
        return repr(self._gpugauge_iterator)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._gpugauge_iterator.__reduce_ex__(protocol)

    def __next__(self) -> Any:
        observer = current_observer()
        begun: tuple[int, int] | None = observer.begin_wait() if observer is not None else None
        if observer is None or begun is None:
            source = self._gpugauge_iterator
            return next(source) if observer is None else observer.take_elsewhere(next, source)
        observer.inner = None
        loads = observer.state.loads
        loads.begin_own(begun[1])
        try:
            batch = next(self._gpugauge_iterator)
        except BaseException:
            observer.end_wait(*begun, self)
            raise
        loads.end_own(begun[1], observer.record.base)
        observer.end_wait_with_batch(*begun, None, self, batch)
        return batch


class _CountedSizedIterator(_CountedIterator):
    """An iterator that has a length, by which it is also true or false."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._gpugauge_iterator)
