"""Listeners to the calls that switch on a mode of torch, and to torch.cuda.empty_cache()."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gpugauge.hook.counts.modes import ANOMALY_DETECTION, AUTOCAST, EMPTY_CACHE
from gpugauge.hook.observer import Observer
from gpugauge.hook.wrappers import is_compiling, replace


def install(observer: Observer) -> None:
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
        return args[0] if args else kwargs.get("enabled")

    def trains(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001 - __enter__ has no others
        # A context for evaluation does not count.
        return getattr(args[0], "_enabled", True) and torch.is_grad_enabled()

    replace(getattr(torch, "autocast", None), "__enter__", lambda f: counted(AUTOCAST, f, trains))
    cuda = getattr(torch, "cuda", None)
    replace(torch, "set_anomaly_enabled", lambda f: counted(ANOMALY_DETECTION, f, enables))
    replace(cuda, "empty_cache", lambda f: counted(EMPTY_CACHE, f, lambda *_: True))
    memory = getattr(cuda, "memory", None)
    replace(memory, "empty_cache", lambda _: cuda.empty_cache)  # type: ignore[union-attr]  # a memory has its cuda
