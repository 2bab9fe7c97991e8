"""Wrappers of torch's functions: their callbacks raise no error into the program, and run only in eager code. Signal
handlers of the program run between any two instructions, also between ours. Their errors are the program's own.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

# Since torch 2.3; the function of 2.1 and 2.2 is also true in other kinds of compilation, which serves as well.
is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling  # noqa: SLF001  (older torch)
_LEFT_OUT = " (as importlib._bootstrap)"
Found = TypeVar("Found")


def raised_by_handler(error: BaseException | None) -> bool:
    """Return whether a signal handler that is installed has raised an error, or a function that it has called."""
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Any:
    """Return the code of a function, a method, a partial function or a callable object; None for anything else."""
    function = getattr(handler, "func", handler)
    function = getattr(function, "__func__", function)
    if callable(function) and not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def attempt(unknown: Found, source: Callable[..., Found], *arguments: object) -> Found:
    """Return what a source of facts returns, or `unknown` if it raises: other sources are still valid."""
    try:
        return source(*arguments)
    except Exception as error:
        if raised_by_handler(error):
            raise  # the program's own error
        return unknown


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
        while isinstance(getattr(function, "__code__", None), CodeType):
            yield function
            function = getattr(function, "__wrapped__", None)


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
        if is_compiling() or observer.enter_phase(phase) is None:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            observer.leave_phase(phase)

    return wrapper


def after(
    observer: Observer, function: Callable[..., Any], callback: Callable[[Any], object], first: bool = False
) -> Callable[..., Any]:
    """Return a wrapper of the method that afterwards, or `first`, calls `callback` with the object."""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = None if first else function(self, *args, **kwargs)
        if not is_compiling() and not observer.off:
            try:
                callback(self)
            except Exception:
                observer.count_error()
        return function(self, *args, **kwargs) if first else result

    return wrapper


before = functools.partial(after, first=True)


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
