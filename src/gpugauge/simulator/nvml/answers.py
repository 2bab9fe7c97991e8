"""Helpers of simulated functions: they write into what pynvml passes (`byref` has it as `_obj`) and return codes."""

from __future__ import annotations

# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)
import ctypes
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 1, 2, 3, 6, 7
TIMEOUT, GPU_IS_LOST = 10, 15


NOT_AVAILABLE_32 = 0xFFFFFFFF
NOT_AVAILABLE_64 = 0xFFFFFFFFFFFFFFFF

_POINTER = struct.Struct("@P")

# nvmlValueType_t.
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3

DeviceFunction: TypeAlias = Callable[..., int]  # (GPU or MIG device, second, other arguments)


def _write(out: Any, value: int | None, absent: int) -> int:
    if value is None:
        return absent
    out._obj.value = value
    return SUCCESS


def number(answer: Callable[[Any, float], int | None]) -> DeviceFunction:
    """Return a function that writes a number; None means not supported."""
    return lambda device, t, out: _write(out, answer(device, t), NOT_SUPPORTED)


def chosen(answer: Callable[[Any, float, int], int | None]) -> DeviceFunction:
    """Return a function with an argument before the number that it writes; None means an invalid argument."""
    return lambda device, t, choice, out: _write(out, answer(device, t, plain(choice)), INVALID_ARGUMENT)


def numbers(answer: Callable[[Any, float], tuple[int, ...]]) -> DeviceFunction:
    """Return a function that writes several numbers."""

    def function(device: Any, t: float, *outs: Any) -> int:
        for out, value in zip(outs, answer(device, t), strict=True):
            out._obj.value = value
        return SUCCESS

    return function


def text(answer: Callable[[Any], str]) -> DeviceFunction:
    """Return a function that writes text into a buffer."""

    def function(device: Any, _t: float, buffer: Any, length: Any) -> int:
        data = answer(device).encode()
        if len(data) >= plain(length):
            return INSUFFICIENT_SIZE
        buffer.value = data
        return SUCCESS

    return function


def structure(answer: Callable[[Any, float], dict[str, Any]]) -> DeviceFunction:
    """Return a function that fills a structure."""

    def function(device: Any, t: float, out: Any) -> int:
        for name, value in answer(device, t).items():
            setattr(out._obj, name, value)
        return SUCCESS

    return function


def plain(value: Any) -> int:
    """Return the value of a number, a ctypes object or an int."""
    return int(getattr(value, "value", value))


def point(target: Any, value: int) -> None:
    """Store a number in an opaque pointer."""
    ctypes.c_void_p.from_buffer(target).value = value


def pointed(pointer: Any) -> int:
    """Return the number in an opaque pointer."""
    number: int = _POINTER.unpack_from(pointer)[0]
    return number
