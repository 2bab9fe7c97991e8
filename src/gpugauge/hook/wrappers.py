"""Wrappers of torch's functions. Their callbacks raise no error into the program, and run only in eager code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gpugauge.hook.observer import Observer

# Since torch 2.3; the function of 2.1 and 2.2 is also true in other kinds of compilation, which serves as well.
is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling  # noqa: SLF001  (older torch)


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by a wrapper, if the function exists."""
    function = None if owner is None else getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, wrap(function))


def within(observer: Observer, phase: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the function whose time on the training thread counts as a phase."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not observer.enter_phase(phase):
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            observer.leave_phase(phase)

    return wrapper


def after(observer: Observer, function: Callable[..., Any], callback: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a wrapper of the method that afterwards calls `callback` with the object."""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(self, *args, **kwargs)
        if not is_compiling() and not observer.off:
            try:
                callback(self)
            except Exception:
                observer.count_error()
        return result

    return wrapper
