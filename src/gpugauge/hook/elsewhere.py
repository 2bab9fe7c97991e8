"""Iterators and batches that a thread takes which does not train, or that a loader takes inside of another wait."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.phases import EVALUATING, STARTING, TRAINING
from gpugauge.hook.counts.sizes import Reader, Work, reader, unknown_size

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer


def take(observer: Observer, function: Callable[[Any], Any], source: Any, is_loader: bool = False) -> Any:
    """Return the next batch of an iterator, or the iterator of a loader, on a thread that does not train, or inside
    another wait, which covers it.
    """
    thread, waiting = threading.get_ident(), observer.waiting_elsewhere
    inside = thread in waiting
    waiting.add(thread)
    start, found, brought = CLOCKS[0](), None, False
    try:
        found, brought = function(source), not is_loader
    finally:
        if not inside:
            waiting.discard(thread)
        if not observer.off:
            _took(observer, start, source, found, brought, inside)
    return found


def _took(observer: Observer, start: int, source: Any, batch: Any, brought: bool, inside: bool) -> None:
    try:
        if not brought:
            observer.state.count_unreported_step(CLOCKS[0]())  # a step may have come before
        if observer.phases.on_training_thread():
            _note_inner(observer, source, batch, brought)
        elif not inside:
            _record(observer, start, source, batch, brought)
    except Exception:
        observer.count_error()


def _record(observer: Observer, start: int, source: Any, batch: Any, brought: bool) -> None:
    now = CLOCKS[0]()
    taken = observer.recorder.taken_by(threading.get_ident())
    phase = TRAINING if torch.is_grad_enabled() else EVALUATING
    taken.waited[phase] += now - start
    if not brought:
        return
    taken.batches, taken.last = taken.batches + 1, now
    observer.state.count_unreported_step(now, training=phase == TRAINING)
    if phase == TRAINING:
        taken.trains = True
        _reader(source, batch, taken.work)(batch, taken.work)
    if observer.live.base == STARTING:
        observer.phases.set_base(phase, now)
    if now >= observer.publish_due:
        observer.publish(now)


def _note_inner(observer: Observer, iterator: Any, batch: Any, brought: bool) -> None:
    """Keep torch's iterator, and the reader of its batches, for the iterator around it."""
    if brought and hasattr(type(iterator), "gpugauge_size"):
        observer.inner_reader = _reader(iterator, batch, observer.recorder.new_work())
        observer.inner = weakref.ref(iterator)


def _reader(iterator: Any, batch: Any, work: Work) -> Reader:
    """Return the reader of the sizes of batches, stored with the iterator from the first batch on."""
    if not hasattr(type(iterator), "gpugauge_size"):
        return unknown_size
    if iterator.gpugauge_size is None:
        iterator.gpugauge_size = reader(iterator, batch, work)
    read: Reader = iterator.gpugauge_size
    return read
