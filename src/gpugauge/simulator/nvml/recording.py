"""Recordings of the NVML library: every call with its arguments, return code, outputs and duration.

The format is JSON lines. The first line has the facts of the machine. Every other line is a call: `f` the function, `a`
its arguments (numbers; pointers as numbers; buffers with their content before the call, in hexadecimal without trailing
zeros), `r` the return code, `o` the content of the buffers after the call by position, `us` the microseconds.
"""

from __future__ import annotations

import ctypes
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TextIO

FORMAT = 1


class Recorder:
    """Replaces the library: it calls the library and writes each call to `file`."""

    def __init__(self, library: Any, file: TextIO, driver_version: str) -> None:
        self._library, self._file = library, file
        facts = {
            "recording": FORMAT,
            "date": time.strftime("%Y-%m-%d"),
            "driver_version": driver_version,
            "binding": version("nvidia-ml-py"),
            "kernel": platform.release(),
        }
        self._write(facts)

    def __getattr__(self, function: str) -> Callable[..., int]:
        """Return a function of the library that is recorded. Raises AttributeError if the library lacks it."""
        inner = getattr(self._library, function)

        def call(*arguments: Any) -> int:
            before = [argument_of(a) for a in arguments]
            began = time.perf_counter()
            code: int = inner(*arguments)
            took = time.perf_counter() - began
            outputs = {str(i): content(t) for i, t in enumerate(map(target, arguments)) if t is not None}
            self._write({"f": function, "a": before, "r": code, "o": outputs, "us": round(took * 1e6, 1)})
            return code

        return call

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def target(argument: Any) -> Any:
    """Return the object that a call may write to through an argument; None for input arguments."""
    referenced = getattr(argument, "_obj", argument)
    return referenced if referenced is not argument or isinstance(argument, ctypes.Array) else None


def argument_of(argument: Any) -> int | str | None:
    """Return an argument as it is recorded."""
    written = target(argument)
    if written is not None:
        return content(written)
    if argument is None or isinstance(argument, int):
        return argument
    if hasattr(argument, "contents"):
        return ctypes.c_void_p.from_buffer(argument).value
    return int(argument.value)


def content(written: Any) -> str:
    """Return the bytes of a ctypes object in hexadecimal without trailing zeros."""
    return bytes(memoryview(written).cast("B") if written is not None else b"").rstrip(b"\0").hex()
