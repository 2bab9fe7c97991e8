"""Iterators and batches that a thread takes which does not train, or that a loader takes inside of another wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook.counts import phases
from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.recorder import NO_BATCH
from gpugauge.hook.counts.sizes import Work, learn, unknown_size

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer


def take(observer: Observer, function: Callable[[Any], Any], iterator: Any) -> Any:
    """Return the next batch of an iterator on a thread that does not train, or inside another wait, which covers it."""
    thread = threading.get_ident()
    if thread in observer.waiting_elsewhere:
        batch = function(iterator)
        _note_reader(observer, iterator, batch)
        return batch
    observer.waiting_elsewhere.add(thread)
    start = CLOCKS[0]()
    try:
        batch = function(iterator)
    except StopIteration:
        _end(observer, start)
        raise
    finally:
        observer.waiting_elsewhere.discard(thread)
    if not observer.off:
        try:
            _record(observer, start, iterator, batch)
        except Exception:
            observer.count_error()
    return batch


def start(observer: Observer, function: Callable[[Any], Any], loader: Any) -> Any:
    """Return the iterator of a loader on a thread that does not train, or inside another wait."""
    if observer.off or threading.get_ident() in observer.waiting_elsewhere or observer.phases.on_training_thread():
        return function(loader)
    begun = CLOCKS[0]()
    try:
        return function(loader)
    finally:
        _end(observer, begun)


def _record(observer: Observer, start: int, iterator: Any, batch: Any) -> None:
    if observer.phases.on_training_thread():
        observer.note_inner(iterator)
        _note_reader(observer, iterator, batch)
        return
    now = CLOCKS[0]()
    phase = phases.TRAINING if torch.is_grad_enabled() else phases.EVALUATING
    work = observer.recorder.add_wait_elsewhere(threading.get_ident(), (start, now, phase))
    observer.state.count_unreported_step(now, training=phase == phases.TRAINING)
    if phase == phases.TRAINING:
        read = getattr(iterator, "gpugauge_size", unknown_size)
        read(batch, work) if read else learn(iterator, batch, work)
    if observer.live.base == phases.STARTING:
        observer.phases.set_base(phase, now)
    if now >= observer.publish_due:
        observer.publish(now)


def _note_reader(observer: Observer, iterator: Any, batch: Any) -> None:
    """Keep the reader of the batches of torch's iterator for the iterator around it."""
    try:
        if hasattr(iterator, "gpugauge_size") and observer.phases.on_training_thread():
            if "gpugauge_size" not in vars(iterator):
                learn(iterator, batch, Work(observer.state.record))
            observer.inner_reader = vars(iterator).get("gpugauge_size", unknown_size)
    except Exception:
        observer.count_error()


def _end(observer: Observer, start: int) -> None:
    """Record the wait of a thread that brings no batch, since `start`: for an iterator, or for the end of one. A step
    may have come before.
    """
    try:
        now = CLOCKS[0]()
        observer.state.count_unreported_step(now)
        if not observer.phases.on_training_thread():
            observer.recorder.add_wait_elsewhere(threading.get_ident(), (start, now, NO_BATCH))
    except Exception:
        observer.count_error()
