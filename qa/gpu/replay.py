"""Replay of a recording: each call returns what it returned in the recording, in order; the last result is repeated.

A recording (`python -m qa.gpu.check`) has every call of the NVML library with its arguments, return code, outputs and
duration.
The format is JSON lines. The first line has the facts of the machine. Every other line is a call: `f` the function, `a`
its arguments (numbers; pointers as numbers; buffers with their content before the call, in hexadecimal without trailing
zeros), `r` the return code, `o` the content of the buffers after the call by position, `us` the microseconds.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeAlias

from gpugauge.simulator.nvml.answers import NOT_SUPPORTED, SUCCESS

FORMAT = 1
_MAX_FIELD_VALUES = 1000  # per call; the driver's tables have some dozens
# The exceptions that a line which is not a recorded call may cause.
_LINE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error)
_FIELD_VALUES = "nvmlDeviceGetFieldValues"
_FIELD_VALUE = struct.Struct("=IIqqII8s")  # id, scope, time, latency, type, code, value
# Positions of arguments that differ in each call: the time of the last sample.
_VARYING_ARGUMENTS = {"nvmlDeviceGetSamples": {2}, "nvmlDeviceGetProcessUtilization": {3}}


def _check(line: str) -> None:
    """Raise ValueError if a line is not the first one of a recording."""
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        facts = None
    match facts:
        case {"recording": int(form), "driver_version": str()} if form == FORMAT:
            return
    raise ValueError("the first line is not that of a recording: record with `python -m qa.gpu.check`")


# The results of equal calls, in order: return code, and outputs by position.
_Answers: TypeAlias = "deque[tuple[int, dict[int, bytes]]]"


def _next(answers: _Answers) -> tuple[int, dict[int, bytes]]:
    return answers.popleft() if len(answers) > 1 else answers[0]


class Replay:
    """Replaces the shared library; an attribute is a C function. Raises OSError or ValueError."""

    def __init__(self, path: Path) -> None:
        self._functions: set[str] = set()
        self._exact: defaultdict[Hashable, _Answers] = defaultdict(deque)
        self._similar: defaultdict[Hashable, _Answers] = defaultdict(deque)
        with path.open(encoding="utf-8") as lines:
            _check(lines.readline())
            number = 1
            try:
                for number, line in enumerate(lines, 2):  # noqa: B007  (the message needs it)
                    self._add(**json.loads(line))
            except _LINE_ERRORS as error:
                raise ValueError(f"{path}:{number}: not a recorded call: {error}") from None

    def __getattr__(self, function: str) -> Callable[..., int]:
        """Return a recorded function. Raises AttributeError for others."""
        if function not in self._functions:
            raise AttributeError(function)
        if function == _FIELD_VALUES:
            return self._field_values

        def call(*arguments: Any) -> int:
            plain = [argument_of(a) for a in arguments]
            found = self._exact.get(_key(function, plain)) or self._similar.get(_similar(function, plain))
            if found is None:
                return NOT_SUPPORTED
            code, outputs = _next(found)
            for position, data in outputs.items():
                _write(target(arguments[position]), data)
            return code

        return call

    def _add(self, f: str, a: list[Any], r: int, o: dict[str, str], us: float) -> None:
        self._functions.add(f)
        outputs = {int(position): bytes.fromhex(data) for position, data in o.items()}
        if outputs and not 0 <= min(outputs) <= max(outputs) < len(a):
            raise ValueError("an output is not an argument")
        if f == _FIELD_VALUES:  # by value: other calls may read other fields together
            if not 0 <= a[1] <= _MAX_FIELD_VALUES:
                raise ValueError(f"{a[1]} field values in one call")
            data = outputs[2].ljust(a[1] * _FIELD_VALUE.size, b"\0")
            for value in _FIELD_VALUE.iter_unpack(data) if r == SUCCESS else ():
                self._exact[f, a[0], value[0], value[1]].append((value[5], {0: _FIELD_VALUE.pack(*value)}))
            return
        self._exact[_key(f, a)].append((r, outputs))
        similar = _similar(f, a)
        if similar is not None:
            self._similar[similar].append((r, outputs))

    def _field_values(self, handle: Any, _count: Any, values: Any) -> int:
        for value in values._obj:
            found = self._exact.get((_FIELD_VALUES, argument_of(handle), value.fieldId, value.scopeId))
            value.nvmlReturn = NOT_SUPPORTED
            if found:
                _write(value, _next(found)[1][0])
        return SUCCESS


def _key(function: str, arguments: list[Any]) -> Hashable:
    varying = _VARYING_ARGUMENTS.get(function, ())
    return (function, *(None if i in varying else a for i, a in enumerate(arguments)))


def _similar(function: str, arguments: list[Any]) -> Hashable | None:
    """Return the key of a call without the content of its buffers; None if nothing else identifies it."""
    varying = _VARYING_ARGUMENTS.get(function, ())
    left = [(i, a) for i, a in enumerate(arguments) if isinstance(a, int) and i not in varying]
    return (function, *left, sum(a is None for a in arguments)) if left else None


def _write(written: Any, data: bytes) -> None:
    size = ctypes.sizeof(written)
    ctypes.memmove(ctypes.addressof(written), data[:size].ljust(size, b"\0"), size)


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
