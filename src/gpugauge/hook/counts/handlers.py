"""Facts that torch may refuse, and errors of the program's signal handlers.

Python runs such handlers between any two instructions, also between ours.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, TypeVar


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


Found = TypeVar("Found")


def attempt(unknown: Found, source: Callable[..., Found], *arguments: object) -> Found:
    """Return what a source of facts returns, or `unknown` if it raises: other sources are still valid."""
    try:
        return source(*arguments)
    except Exception as error:
        if raised_by_handler(error):
            raise  # the program's own error
        return unknown
