"""One call of the driver's library: counted, timed, and its failure turned into DriverError."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from gpugauge.driver.codes import FUNCTION_NOT_FOUND, IMPLAUSIBLE, DriverError

# member(structure, name): the binding's structures look at each attribute in Python, for the few that are text. Numbers
# need none of that, and they are read every second. put(structure, name, value) likewise.
member = object.__getattribute__
put = object.__setattr__
# Symbols whose function in the binding has another name.
_BOUND_AS = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
}


class Buffer:
    """An array of one of the binding's structures that calls fill: one for all GPUs, and empty before each call."""

    def __init__(self, kind: Any, room: int) -> None:
        self.room = room = max(1, room)
        self.array = (kind * room)()
        self._bytes, self._size = memoryview(self.array).cast("B"), ctypes.sizeof(kind)

    def take(self, count: int, most: int) -> bytes:
        """Return what the first `count` entries hold, of more than `most` the last; the array is empty again then."""
        end = min(count, self.room) * self._size
        taken = bytes(self._bytes[max(0, end - most * self._size) : end])
        self._bytes[:end] = bytes(end)
        return taken


class Caller:
    """Calls functions of a binding (pynvml) by the symbol that the library exports."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._calls: dict[str, list[float]] = {}
        self._structures: dict[str, Any] = {}
        self._buffers: dict[str, Buffer] = {}

    def __call__(self, function: str, *arguments: Any, **more: Any) -> Any:
        """Call; a binding too old to have the function is like a library without the symbol. Raises DriverError."""
        bound = getattr(self.binding, _BOUND_AS.get(function, function), None)
        if bound is None:
            raise DriverError(FUNCTION_NOT_FOUND, function)
        return self.timed(function, bound, *arguments, **more)

    def timed(self, function: str, bound: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """The same with what does the work of a function that the binding has not, or not well."""
        began = time.perf_counter()
        try:
            return bound(*arguments, **more)
        except self.binding.NVMLError as error:
            raise DriverError(error.value, function) from None
        except self.binding.NVMLLibraryMismatchError:  # no NVMLError: the library lacks a versioned symbol
            raise DriverError(FUNCTION_NOT_FOUND, function) from None
        except UnicodeDecodeError:
            raise DriverError(IMPLAUSIBLE, function) from None
        finally:
            self._count(function, time.perf_counter() - began)

    def code(self, function: str, *arguments: Any) -> int:
        """Call the library itself, with the buffers of the caller, and return its code: what is asked many times a
        second must neither size and allocate each time, nor raise where nothing is new. Raises DriverError if the
        library lacks the function.
        """
        try:
            symbol = self.binding._nvmlGetFunctionPointer(function)  # noqa: SLF001  (the binding has no public way)
        except self.binding.NVMLError as error:
            raise DriverError(error.value, function) from None
        began = time.perf_counter()
        code: int = symbol(*arguments)
        self._count(function, time.perf_counter() - began)
        return code

    def structure(self, name: str) -> Any:
        """Return the one instance of a large structure of the binding, for calls that fill it anew."""
        found = self._structures.get(name)
        if found is None:
            found = self._structures[name] = getattr(self.binding, name)()
        return found

    def buffer(self, kind: str, room: int) -> Buffer:
        """Return the one buffer for structures of a kind, made larger if it has no room for so many."""
        found = self._buffers.get(kind)
        if found is None or found.room < room:
            found = self._buffers[kind] = Buffer(getattr(self.binding, kind), room)
        return found

    def take_counts(self) -> dict[str, list[float]]:
        """Return and reset the counters: number of calls, seconds, and longest seconds by function."""
        calls, self._calls = self._calls, {}
        return calls

    def _count(self, function: str, took: float) -> None:
        counter = self._calls.get(function)
        if counter is None:
            self._calls[function] = [1, took, took]
            return
        counter[0] += 1
        counter[1] += took
        counter[2] = max(counter[2], took)
