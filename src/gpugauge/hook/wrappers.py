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
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


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


def replace(owner: Any, path: str, wrap: Wrap) -> None:
    """Replace a function by a wrapper, if this version of the library has it. `path` leads from the owner to it."""
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if name in getattr(owner, "__dict__", ()):
        setattr(owner, name, wrap(getattr(owner, name)))


def functions() -> Iterator[Any]:
    """Yield the functions of the hook, and the methods of its classes."""
    for name, loaded in tuple(sys.modules.items()):
        values = tuple(vars(loaded).values()) if name.startswith("gpugauge.") else ()
        for value in values:
            members = vars(value).values() if isinstance(value, type) else (value,)
            for member in members if getattr(value, "__module__", None) == name else ():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                while isinstance(getattr(function, "__code__", None), CodeType):
                    yield function
                    function = getattr(function, "__wrapped__", None)


def be_unnoticed() -> None:
    """Have warnings name the lines that they name without the hook: where Python counts the levels of a stack, it
    leaves out the frames of its own import system, which it knows by two words in the names of their files.
    """
    for function in functions():
        if not function.__code__.co_filename.endswith(_LEFT_OUT):
            function.__code__ = _left_out(function.__code__)


def _left_out(code: CodeType) -> CodeType:
    inner = tuple(_left_out(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_consts=inner, co_filename=code.co_filename + _LEFT_OUT)


def around(observer: Observer, begin: Callable[..., Callable[[], object] | None]) -> Wrap:
    """Return a decorator: `begin` is called before the function, with its arguments, and what it returns after it."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            end = None
            if not compiling() and not observer.off:
                try:
                    end = begin(*args, **kwargs)
                except Exception:
                    observer.count_error()
            if end is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                try:
                    end()
                except Exception:
                    observer.count_error()

        compiling = is_compiling  # the interpreter empties modules before it ends the last objects
        return wrapper

    return wrap


def within(observer: Observer, phase: int) -> Wrap:
    """Return a decorator of functions whose time on the training thread counts as a phase."""
    leave = functools.partial(observer.leave_phase, phase)
    return around(observer, lambda *_, **__: None if observer.enter_phase(phase) is None else leave)


def after(observer: Observer, callback: Callable[[Any], object]) -> Wrap:
    """Return a decorator of methods after which `callback` is called with the object, if they raise no error."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
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

    return wrap


class Listener:
    """A wrapper of the function of this name that is in its place only while its calls decide something."""

    def __init__(self, owner: Any, name: str, wrap: Wrap) -> None:
        self._owner, self._name, self._wrap = owner, name, wrap
        self._original: Any = None
        self._wrapper: Any = None

    def listen(self) -> None:
        """Begin to listen. A function of the program in the place of torch's is wrapped, too."""
        original = getattr(self._owner, self._name, None)
        if original is not None and self._wrapper is None:
            self._original, self._wrapper = original, self._wrap(original)
            setattr(self._owner, self._name, self._wrapper)

    def ignore(self) -> None:
        """Listen no more, if nothing else has taken the place of the wrapper."""
        if self._wrapper is not None and getattr(self._owner, self._name) is self._wrapper:
            setattr(self._owner, self._name, self._original)
            self._wrapper = None
