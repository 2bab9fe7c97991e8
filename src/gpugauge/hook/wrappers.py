"""Wrappers of torch's functions. Their callbacks raise no error into the program, and run only in eager code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

# Since torch 2.3; the function of 2.1 and 2.2 is also true in other kinds of compilation, which serves as well.
is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling  # noqa: SLF001  (older torch)


_LEFT_OUT = " (as importlib._bootstrap)"


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by a wrapper, if the function exists."""
    function = None if owner is None else getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, wrap(function))


def functions(value: Any, module: str) -> Iterator[Any]:
    """Yield a function, or the methods of a class, that a module defines."""
    if getattr(value, "__module__", None) != module:
        return
    members = vars(value).values() if isinstance(value, type) else (value,)
    for member in members:
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(getattr(function, "__code__", None), CodeType):
            yield function


def be_unnoticed() -> None:
    """Have warnings name the lines that they name without the hook. Python leaves out the frames of its own import
    system when it counts the levels of a stack, and knows these by two words in the names of their files.
    """
    for name, loaded in tuple(sys.modules.items()):
        if name.startswith("gpugauge.hook"):
            for value in tuple(vars(loaded).values()):
                for function in functions(value, name):
                    if not function.__code__.co_filename.endswith(_LEFT_OUT):
                        function.__code__ = _left_out(function.__code__)


def _left_out(code: CodeType) -> CodeType:
    inner = tuple(_left_out(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_consts=inner, co_filename=code.co_filename + _LEFT_OUT)


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


class Backward:
    """Calls `passed` after each backward pass, only while these decide something."""

    def __init__(self, passed: Callable[[], object]) -> None:
        self._owner: Any = getattr(torch, "autograd", None)
        self._passed = passed
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None

    def listen(self) -> None:
        """Begin to listen. A function of the program in the place of torch's is wrapped, too."""
        original = getattr(self._owner, "backward", None)
        if original is None or self._wrapper is not None:
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not is_compiling():
                self._passed()
            return result

        self._original, self._wrapper = original, wrapper
        self._owner.backward = wrapper

    def ignore(self) -> None:
        """Listen no more, if nothing else has taken the place of the wrapper."""
        if self._wrapper is not None and self._owner.backward is self._wrapper:
            self._owner.backward, self._wrapper = self._original, None
