"""How simulated functions answer: NVML's codes, and writing into what the caller passed.

Arguments come as pynvml passes them: numbers, buffers, and references made by `byref`, whose target is `_obj`.
"""
# ruff: noqa: SLF001  (`_obj` is what ctypes offers)

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
TIMEOUT = 10
GPU_IS_LOST = 15

NOT_AVAILABLE_32 = 0xFFFFFFFF
NOT_AVAILABLE_64 = 0xFFFFFFFFFFFFFFFF

_POINTER = struct.Struct("@P")

# NVML's value types.
DOUBLE, UNSIGNED_INT, UNSIGNED_LONG_LONG = 0, 1, 3

DeviceFunction: TypeAlias = Callable[..., int]  # (card or MIG device, second, the call's other arguments)


def number(answer: Callable[[Any, float], int | None]) -> DeviceFunction:
    """A function that writes one number; None is not supported."""

    def function(card: Any, t: float, out: Any) -> int:
        value = answer(card, t)
        if value is None:
            return NOT_SUPPORTED
        out._obj.value = value
        return SUCCESS

    return function


def numbers(answer: Callable[[Any, float], tuple[int, ...]]) -> DeviceFunction:
    """A function that writes several."""

    def function(card: Any, t: float, *outs: Any) -> int:
        for out, value in zip(outs, answer(card, t), strict=True):
            out._obj.value = value
        return SUCCESS

    return function


def chosen(answer: Callable[[Any, float, int], int | None]) -> DeviceFunction:
    """A function with a choice before the number that it writes; None is a choice that there is not."""

    def function(card: Any, t: float, choice: Any, out: Any) -> int:
        value = answer(card, t, plain(choice))
        if value is None:
            return INVALID_ARGUMENT
        out._obj.value = value
        return SUCCESS

    return function


def text(answer: Callable[[Any], str]) -> DeviceFunction:
    """A function that fills a buffer."""

    def function(card: Any, _t: float, buffer: Any, length: Any) -> int:
        return fill(buffer, length, answer(card))

    return function


def structure(answer: Callable[[Any, float], dict[str, Any]]) -> DeviceFunction:
    """A function that fills a structure."""

    def function(card: Any, t: float, out: Any) -> int:
        for name, value in answer(card, t).items():
            setattr(out._obj, name, value)
        return SUCCESS

    return function


def fill(buffer: Any, length: Any, content: str) -> int:
    """Write a text into a buffer, if it is long enough."""
    data = content.encode()
    if len(data) >= plain(length):
        return INSUFFICIENT_SIZE
    buffer.value = data
    return SUCCESS


def plain(value: Any) -> int:
    """Return a number that came as a ctypes object or as an int."""
    return int(getattr(value, "value", value))


def point(target: Any, value: int) -> None:
    """Let an opaque pointer be a number."""
    ctypes.c_void_p.from_buffer(target).value = value


def pointed(pointer: Any) -> int:
    """The number in an opaque pointer."""
    number: int = _POINTER.unpack_from(pointer)[0]
    return number
