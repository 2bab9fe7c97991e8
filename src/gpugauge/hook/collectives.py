"""Listeners to torch.distributed: the calls that wait for other ranks, and the iterations of DDP."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.observer import Observer
from gpugauge.hook.wrappers import is_compiling, replace


def install(observer: Observer) -> None:
    """Register with torch, once in a process."""
    library = getattr(torch._C, "_distributed_c10d", None)  # noqa: SLF001 - its types are public under other names
    waits = (
        (getattr(library, "Work", None), "wait"),
        (getattr(library, "ProcessGroup", None), "monitored_barrier"),
        (torch.distributed, "_broadcast_coalesced"),  # buffers, before a forward pass of DDP
        (getattr(library, "Reducer", None), "_rebuild_buckets"),  # the first time, before the second one
    )
    for owner, name in waits:
        replace(owner, name, lambda f: _waiting(observer, f))
    replace(getattr(library, "Logger", None), "set_runtime_stats_and_log", lambda f: _iteration(observer, f))


def functional(observer: Observer, module: Any) -> None:
    """Adapt the module of the functional collectives."""
    replace(module, "wait_tensor", lambda f: _eager(f, _waiting(observer, f)))


def _eager(function: Callable[..., Any], measured: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the measured one, and that dynamo can trace without a graph break."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_compiling() else measured(*args, **kwargs)

    return wrapper


def _waiting(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the function whose time on the training thread is a wait for other ranks."""
    local, live = observer.state.local_work, observer.live

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not local.blocking or get_ident() != live.thread:
            return function(self, *args, **kwargs)
        start = CLOCKS[0]()
        try:
            return function(self, *args, **kwargs)
        finally:
            local.waited += CLOCKS[0]() - start

    # pybind11 recognises by this name and by `self` that an override calls the method that it overrides.
    wrapper.__code__ = wrapper.__code__.replace(co_name=getattr(function, "__name__", "wrapper"))
    return functools.wraps(function)(wrapper)


def _iteration(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the method by which DDP reads its timings, at the begin of each forward pass."""
    local = observer.state.local_work

    @functools.wraps(function)
    def set_runtime_stats_and_log(self: Any) -> None:
        function(self)
        if not observer.off and not is_compiling():
            try:
                local.end_iteration(self)
            except Exception:
                observer.count_error()

    return set_runtime_stats_and_log
