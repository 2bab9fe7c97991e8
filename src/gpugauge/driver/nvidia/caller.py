"""Calls of the NVML library: counted, timed, and with DriverError for failures."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from gpugauge.driver.codes import FUNCTION_NOT_FOUND, IMPLAUSIBLE, TOO_SLOW, DriverError
from gpugauge.driver.nvidia.codes import code_name
from gpugauge.driver.worker import Calls

# member(structure, name) and put(structure, name, value) access a number in a structure of the binding. They bypass its
# Python hooks, which decode text and slow down each access.
member = object.__getattribute__
put = object.__setattr__
# Symbols whose function has another name in the binding.
_BOUND_AS = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
}


class Buffer:
    """An array of structures of the binding, shared by all GPUs; it is zero before each call that fills it."""

    def __init__(self, kind: Any, capacity: int) -> None:
        self.capacity = capacity = max(1, capacity)
        self.array = (kind * capacity)()
        self._bytes, self._size = memoryview(self.array).cast("B"), ctypes.sizeof(kind)

    def take(self, count: int, max_count: int) -> bytes:
        """Return the bytes of the first `count` entries, at most of the last `max_count` of them; clear the array."""
        end = min(count, self.capacity) * self._size
        taken = bytes(self._bytes[max(0, end - max_count * self._size) : end])
        self._bytes[:end] = bytes(end)
        return taken


class Caller(Calls):
    """Calls the functions of a binding (pynvml) by the symbols that the library exports."""

    def __init__(self, binding: Any, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.binding = binding
        self._buffers: dict[str, Buffer] = {}
        self._exported: dict[str, bool] = {}
        self.until = math.inf
        """The time after which no call begins, except those that free something: they fail as too slow."""

    def __call__(self, function: str, *arguments: Any, **more: Any) -> Any:
        """Call a function. Raises DriverError."""
        return self.timed(function, self.bound(_BOUND_AS.get(function, function), function), *arguments, **more)

    def bound(self, name: str, function: str) -> Any:
        """Return what the binding has under a name that `function` needs. Raises DriverError: versions differ."""
        found = getattr(self.binding, name, None)
        if found is None:
            raise DriverError(FUNCTION_NOT_FOUND, function)
        return found

    def timed(self, function: str, bound: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Call `bound` in place of a function that the binding lacks or implements badly. Raises DriverError."""
        began = self._begin(function)
        try:
            return bound(*arguments, **more)
        except self.binding.NVMLError as error:
            raise DriverError(code_name(error.value), function) from None
        except self.binding.NVMLLibraryMismatchError:  # not an NVMLError: the library lacks a versioned symbol
            raise DriverError(FUNCTION_NOT_FOUND, function) from None
        except UnicodeDecodeError:
            raise DriverError(IMPLAUSIBLE, function) from None
        finally:
            self.count(function, began)

    def code(self, function: str, *arguments: Any) -> str:
        """Call the library with buffers of the caller, without the binding's cost; return its code."""
        symbol = self._symbol(function)
        began = self._begin(function)
        number: int = symbol(*arguments)
        self.count(function, began)
        return code_name(number) if number else ""  # most calls succeed

    def direct(self, function: str, *arguments: Any) -> None:
        """Call the library directly. Raises DriverError."""
        if code := self.code(function, *arguments):
            raise DriverError(code, function)

    def exports(self, function: str) -> bool:
        """Return whether the library has a function."""
        if function not in self._exported:
            self._exported[function] = True
            try:
                self._symbol(function)
            except DriverError:
                self._exported[function] = False
        return self._exported[function]

    def buffer(self, kind: str, capacity: int, function: str) -> Buffer:
        """Return the shared buffer for at least so many structures, which `function` needs. Raises DriverError."""
        found = self._buffers.get(kind)
        if found is None or found.capacity < capacity:
            found = self._buffers[kind] = Buffer(self.bound(kind, function), capacity)
        return found

    def _symbol(self, function: str) -> Any:
        try:
            return self.binding._nvmlGetFunctionPointer(function)  # noqa: SLF001  (the binding has no public function)
        except self.binding.NVMLError as error:
            raise DriverError(code_name(error.value), function) from None

    def begin(self, seconds: float) -> None:
        """Let no call begin after so many seconds."""
        self.until = self.clock() + seconds

    def _begin(self, function: str) -> float:
        if self.ended[0] > self.until and not function.endswith("Free"):
            raise DriverError(TOO_SLOW, function)
        return self.clock()
