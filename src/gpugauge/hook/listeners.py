"""Listeners to torch: optimizers, loaders, checkpoints, module.eval(), wrappers of models, modes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpugauge.hook import loaders
from gpugauge.hook.counts import hot
from gpugauge.hook.counts.modes import ANOMALY_DETECTION, AUTOCAST, EMPTY_CACHE
from gpugauge.hook.counts.phases import CHECKPOINTING
from gpugauge.hook.observer import Observer
from gpugauge.hook.wrappers import after, is_compiling, replace, within

_COMPILERS = ("torch._functorch", "torch._dynamo", "torch._inductor")


def install(observer: Observer) -> None:
    """Register with torch, once in a process."""
    register_optimizer_step_post_hook(hot.step_hook(observer, is_compiling))
    loaders.install(observer)
    module = getattr(getattr(torch, "nn", None), "Module", None)

    def created(optimizer: Any) -> None:
        observer.state.register_optimizer(optimizer)
        observer.begin()

    def moved(model: Any) -> None:
        observer.state.models.add(model)
        observer.begin()

    optional: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
        (getattr(torch.optim, "Optimizer", None), "__init__", lambda f: after(observer, f, created)),
        (module, "eval", lambda f: evaluating(observer, f)),
        (module, "to", lambda f: after(observer, f, moved)),
        (module, "cuda", lambda f: after(observer, f, moved)),
        (torch, "save", lambda f: within(observer, CHECKPOINTING, f)),
        (getattr(torch, "serialization", None), "save", lambda _: torch.save),
    )
    for owner, name, wrap in optional:
        replace(owner, name, wrap)
    _listen_to_wrappers(observer)


def evaluating(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the method eval of a module that records the call, and the next call of its method train."""
    kind: Any = torch.nn.Module

    def called(module: Any) -> None:
        observer.on_eval(module)
        if observer.evaluated is not None and not hasattr(kind.train, "gpugauge_original"):
            kind.train = listening(kind.train)

    def listening(original: Callable[..., Any]) -> Callable[..., Any]:
        # Only from an evaluation on: train() runs for each part of a model, in some programs before each step.
        def trained(module: Any) -> None:
            observer.on_train(module)
            if observer.evaluated is None and kind.train is wrapper:
                kind.train = original

        wrapper: Any = after(observer, original, trained)
        wrapper.gpugauge_original = original
        return wrapper  # type: ignore[no-any-return]  # a function with an attribute

    return after(observer, function, called)


def _listen_to_wrappers(observer: Observer) -> None:
    state, parallel = observer.state, getattr(getattr(torch, "nn", None), "parallel", None)

    def distributed(model: Any) -> None:
        state.local_work.add_model(model)
        state.models.add(model.module)
        state.set_facts(parallel="ddp")

    def data_parallel(model: Any) -> None:
        count = len(getattr(model, "device_ids", None) or ())
        state.set_facts(parallel="dataparallel", dataparallel_devices=str(count))

    for name, callback in (("DistributedDataParallel", distributed), ("DataParallel", data_parallel)):
        replace(getattr(parallel, name, None), "__init__", lambda f, callback=callback: after(observer, f, callback))  # type: ignore[misc]  # the lambda has a default


def _compiles() -> bool:
    """Return whether torch.compile has called: it detects anomalies once in each graph that it traces."""
    frame = sys._getframe(3)  # noqa: SLF001 - the caller of torch.set_anomaly_enabled()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.autograd"):
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_COMPILERS)


def count_modes(observer: Observer) -> None:
    """Count the calls. All ways into anomaly detection call torch.set_anomaly_enabled()."""
    modes = observer.state.modes

    def counted(name: str, function: Callable[..., Any], on: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and on(args, kwargs):
                modes.calls[name] += 1
            return function(*args, **kwargs)

        return wrapper

    def enables(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0] if args else kwargs.get("enabled")) and not _compiles()

    def trains(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001 - __enter__ has no others
        # A context for evaluation does not count.
        return getattr(args[0], "_enabled", True) and torch.is_grad_enabled()

    replace(getattr(torch, "autocast", None), "__enter__", lambda f: counted(AUTOCAST, f, trains))
    cuda = getattr(torch, "cuda", None)
    replace(torch, "set_anomaly_enabled", lambda f: counted(ANOMALY_DETECTION, f, enables))
    replace(cuda, "empty_cache", lambda f: counted(EMPTY_CACHE, f, lambda *_: True))
    memory = getattr(cuda, "memory", None)
    replace(memory, "empty_cache", lambda _: cuda.empty_cache)  # type: ignore[union-attr]  # a memory has its cuda
