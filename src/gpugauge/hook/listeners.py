"""Listeners to torch: optimizers, loaders, checkpoints, calls of module.eval(), wrappers of models.

The functions that run at every step or batch do as little as possible; the rest runs at most once a second, in
Observer.publish.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpugauge.hook.observer import Observer
from gpugauge.hook.phases import CHECKPOINTING, EVALUATING, LOADING, TRAINING

# Since torch 2.3; the function of 2.1 and 2.2 is also true in other kinds of compilation, which serves as well.
_is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling  # noqa: SLF001  (older torch)


def install(observer: Observer) -> None:
    """Register with torch, once in a process."""
    _listen_to_steps(observer)
    _listen_to_batches(observer)
    register = observer.state.register_optimizer
    optional: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
        (getattr(torch.optim, "Optimizer", None), "__init__", lambda f: after(observer, f, register)),
        (getattr(getattr(torch, "nn", None), "Module", None), "eval", lambda f: evaluating(observer, f)),
        (torch, "save", lambda f: within(observer, CHECKPOINTING, f)),
        (getattr(torch, "serialization", None), "save", lambda _: torch.save),
    )
    for owner, name, wrap in optional:
        replace(owner, name, wrap)
    _listen_to_wrappers(observer)


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by a wrapper, if the function exists."""
    function = None if owner is None else getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, wrap(function))


def within(observer: Observer, phase: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the function whose time on the training thread counts as a phase."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or not observer.enter_phase(phase):
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            observer.leave_phase()

    return wrapper


def after(observer: Observer, function: Callable[..., Any], callback: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a wrapper of the method that afterwards calls `callback` with the object."""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        if not _is_compiling() and not observer.off:
            try:
                callback(self)
            except Exception:
                observer.count_error()
        return result

    return wrapper


def evaluating(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the method eval of a module that records the call."""
    return after(observer, function, observer.on_eval)


def _listen_to_wrappers(observer: Observer) -> None:
    state, parallel = observer.state, getattr(getattr(torch, "nn", None), "parallel", None)

    def distributed(model: Any) -> None:
        state.local_work.add_model(model)
        state.set_facts(parallel="ddp")

    def data_parallel(model: Any) -> None:
        count = len(getattr(model, "device_ids", None) or ())
        state.set_facts(parallel="dataparallel", dataparallel_devices=str(count))

    for name, callback in (("DistributedDataParallel", distributed), ("DataParallel", data_parallel)):
        replace(getattr(parallel, name, None), "__init__", lambda f, callback=callback: after(observer, f, callback))  # type: ignore[misc]  # the lambda has a default


def _listen_to_steps(observer: Observer) -> None:
    """Register one global hook after each optimizer step."""
    count, known = observer.recorder.steps.append, observer.state.stepping

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if _is_compiling():
            return  # dynamo traces a compiled optimizer through this function and must find nothing to trace
        now = perf_counter_ns()
        key = id(optimizer)
        if now >= observer.step_due or key not in known:
            observer.on_step(optimizer, now)
        else:
            count((key, now))

    register_optimizer_step_post_hook(after_step)


def _listen_to_batches(observer: Observer) -> None:
    """Wrap the wait for a batch."""
    count, track, waits = observer.recorder.batches.append, observer.phases, observer.state.waits
    thread, grad_enabled = threading.get_ident, torch.is_grad_enabled
    wait = _BaseDataLoaderIter.__next__

    @functools.wraps(wait)
    def next_batch(self: Any) -> Any:
        before, exposed = track.current, waits.used
        if thread() != track.thread or (before == LOADING and not track.entered):
            return foreign_batch(self)  # of another thread, or of a loader inside another loader
        start = perf_counter_ns()
        try:
            track.switch(LOADING, start)
            if exposed:
                waits.begin()
        except Exception:
            observer.count_error()
        try:
            batch = wait(self)
        except BaseException:
            observer.restore_phase(before)
            raise
        try:
            now = perf_counter_ns()
            due = now >= observer.batch_due
            training = observer.is_training_batch(self) if due else grad_enabled()
            track.end_wait(TRAINING if training else EVALUATING, before, now)
            count((start, now, training))
            if exposed:
                waits.end(now, now - start)
            if due or not training:
                observer.on_batch(training, now)
        except Exception:
            observer.count_error()
        return batch

    def foreign_batch(self: Any) -> Any:
        start = perf_counter_ns()
        batch = wait(self)
        observer.on_foreign_batch(start)
        return batch

    _BaseDataLoaderIter.__next__ = next_batch
