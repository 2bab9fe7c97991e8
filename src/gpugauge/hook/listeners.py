"""Listens to torch itself: optimizers, loaders, checkpoints, modules told to evaluate, wrappers of models.

What is called for every step or batch does the least; the rest happens at most once a second, in Observer.publish.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpugauge.hook import phases
from gpugauge.hook.observer import Observer

# Since torch 2.3; what 2.1 and 2.2 have instead is true in every kind of compilation, which serves as well.
_is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling  # noqa: SLF001  (older torch)


def install(observer: Observer) -> None:
    """Register with torch, once in a process."""
    _listen_to_steps(observer)
    _listen_to_batches(observer)
    optional: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
        (getattr(torch.optim, "Optimizer", None), "__init__", lambda f: after(observer, f, observer.met)),
        (getattr(getattr(torch, "nn", None), "Module", None), "eval", lambda f: evaluating(observer, f)),
        (torch, "save", lambda f: within(observer, phases.CHECKPOINTING, f)),
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

    def take(module: Any) -> None:
        observer.evaluated = weakref.ref(module)

    return after(observer, function, take)


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
    steps = observer.recorder.steps
    stepping = observer.stepping

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if _is_compiling() or observer.off:
            return  # a compiled optimizer is traced through here: nothing that dynamo would have to understand
        try:
            now = perf_counter_ns()
            key = id(optimizer)
            steps.append((key, now))
            if key not in stepping:
                observer.know(optimizer)
            observer.stepped(now)
            if now >= observer.due:
                observer.publish(now)
        except Exception:
            observer.failed()

    register_optimizer_step_post_hook(after_step)


def _listen_to_batches(observer: Observer) -> None:
    """Put a wrapper around the wait for a batch."""
    batches = observer.recorder.batches
    here = observer.phases.here
    wait = _BaseDataLoaderIter.__next__

    @functools.wraps(wait)
    def next_batch(self: Any) -> Any:
        followed = not observer.off and here()
        start = perf_counter_ns()
        try:
            if followed:
                observer.waiting(start)
        except Exception:
            observer.failed()
        try:
            batch = wait(self)
        except BaseException:
            if followed:
                observer.leave_phase()
            raise
        try:
            if not observer.off:
                now = perf_counter_ns()
                training = observer.received(now, now - start, self) if followed else torch.is_grad_enabled()
                batches.append((start, now, training))
                if now >= observer.due:
                    observer.publish(now)
        except Exception:
            observer.failed()
        return batch

    _BaseDataLoaderIter.__next__ = next_batch
