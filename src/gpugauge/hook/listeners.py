"""Listens to torch itself: optimizers, loaders, checkpoints, modules told to evaluate, wrappers of models.

What is called for every step or batch does the least; the rest happens at most once a second, in Observer.publish.
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

# Since torch 2.3; what 2.1 and 2.2 have instead is true in every kind of compilation, which serves as well.
_is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling  # noqa: SLF001  (older torch)


def install(observer: Observer) -> None:
    """Register with torch, once in a process."""
    _listen_to_steps(observer)
    _listen_to_batches(observer)
    optional: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
        (getattr(torch.optim, "Optimizer", None), "__init__", lambda f: after(observer, f, observer.met)),
        (getattr(getattr(torch, "nn", None), "Module", None), "eval", lambda f: evaluating(observer, f)),
        (torch, "save", lambda f: within(observer, CHECKPOINTING, f)),
        (getattr(torch, "serialization", None), "save", lambda _: torch.save),
    )
    for owner, name, wrap in optional:
        replace(owner, name, wrap)
    _listen_to_wrappers(observer)


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper in the place of a function, where it exists."""
    function = None if owner is None else getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, wrap(function))


def within(observer: Observer, phase: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it is, with the time that it takes on the training thread told as a phase."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or not observer.enter_phase(phase):
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            observer.leave_phase()

    return wrapper


def after(observer: Observer, function: Callable[..., Any], take: Callable[[Any], object]) -> Callable[..., Any]:
    """Return the method as it is, with its object told to `take` after it."""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        if not _is_compiling() and not observer.off:
            try:
                take(self)
            except Exception:
                observer.failed()
        return result

    return wrapper


def evaluating(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method eval of a module as it is, and remember for which module it was called last."""
    return after(observer, function, observer.told_to_evaluate)


def _listen_to_wrappers(observer: Observer) -> None:
    parallel = getattr(getattr(torch, "nn", None), "parallel", None)

    def distributed(model: Any) -> None:
        observer.local_work.know(model)
        observer.saw(parallel="ddp")

    def data_parallel(model: Any) -> None:
        observer.saw(parallel="dataparallel", dataparallel_devices=str(len(getattr(model, "device_ids", None) or ())))

    for name, take in (("DistributedDataParallel", distributed), ("DataParallel", data_parallel)):
        replace(getattr(parallel, name, None), "__init__", lambda f, take=take: after(observer, f, take))  # type: ignore[misc]  # the lambda has a default


def _listen_to_steps(observer: Observer) -> None:
    """Register one global hook after each optimizer step."""
    count, known = observer.recorder.steps.append, observer.stepping

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if _is_compiling():
            return  # a compiled optimizer is traced through here: nothing that dynamo would have to understand
        now = perf_counter_ns()
        key = id(optimizer)
        if now >= observer.step_look or key not in known:
            observer.stepped(optimizer, now)
        else:
            count((key, now))

    register_optimizer_step_post_hook(after_step)


def _listen_to_batches(observer: Observer) -> None:
    """Put a wrapper around the wait for a batch."""
    count, track, waits = observer.recorder.batches.append, observer.phases, observer.waits
    thread, trains = threading.get_ident, torch.is_grad_enabled
    wait = _BaseDataLoaderIter.__next__

    @functools.wraps(wait)
    def next_batch(self: Any) -> Any:
        before, exposed = track.current, waits.used
        if thread() != track.thread or (before == LOADING and not track.entered):
            return elsewhere(self)  # another thread's, or of a loader that loads from another one
        start = perf_counter_ns()
        try:
            track.switch(LOADING, start)
            if exposed:
                waits.begin()
        except Exception:
            observer.failed()
        try:
            batch = wait(self)
        except BaseException:
            observer.back(before)
            raise
        try:
            now = perf_counter_ns()
            look = now >= observer.batch_look
            training = observer.trains_on(self) if look else trains()
            track.arrive(TRAINING if training else EVALUATING, before, now)
            count((start, now, training))
            if exposed:
                waits.end(now, now - start)
            if look or not training:
                observer.arrived(training, now)
        except Exception:
            observer.failed()
        return batch

    def elsewhere(self: Any) -> Any:
        start = perf_counter_ns()
        batch = wait(self)
        observer.arrived_elsewhere(start)
        return batch

    _BaseDataLoaderIter.__next__ = next_batch
