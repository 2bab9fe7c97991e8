"""Calls of the NVML library: counted, timed, and with DriverError for failures; its numbers and bit masks by name.
Above this package there are only the names.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

from gpugauge.driver import codes
from gpugauge.driver.codes import FUNCTION_NOT_FOUND, IMPLAUSIBLE, TOO_SLOW, DriverError
from gpugauge.driver.worker import Calls

# nvmlReturn_t; 22 is not used.
RETURN_CODES = dict(
    enumerate(
        (
            *(codes.SUCCESS, codes.UNINITIALIZED, codes.INVALID_ARGUMENT, codes.NOT_SUPPORTED, codes.NO_PERMISSION),
            *("already_initialized", codes.NOT_FOUND, codes.INSUFFICIENT_SIZE, "insufficient_power"),
            *(codes.DRIVER_NOT_LOADED, codes.TIMEOUT, "irq_issue", codes.LIBRARY_NOT_FOUND, codes.FUNCTION_NOT_FOUND),
            *("corrupted_inforom", codes.GPU_IS_LOST, codes.RESET_REQUIRED, "operating_system"),
            *(codes.LIBRARY_MISMATCH, "in_use", "memory", "no_data", "code_22", "insufficient_resources"),
            *("freq_not_supported", codes.ARGUMENT_VERSION_MISMATCH, "deprecated", "not_ready", codes.GPU_NOT_FOUND),
            *("invalid_state", "reset_type_not_supported"),
        )
    )
) | {999: codes.UNKNOWN}

# The bits of nvmlClocksEventReasons: the reasons for which the clocks are below their maximum.
_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"),
)
CLOCKS_EVENT_REASONS = {name: 1 << place for place, name in enumerate(_REASONS)}
# The bits of nvmlEventType.
EVENT_TYPES = {"ecc_single_bit": 0x1, "ecc_double_bit": 0x2, "xid": 0x8, "mig": 0x100}
EVENT_TYPES |= {"gpu_unavailable": 0x4000, "recovery_action": 0x8000}


def named(mask: int, bits: Mapping[str, int]) -> list[str]:
    """Return the names of the bits that are set in a mask, without those that have no name."""
    return [name for name, bit in bits.items() if mask & bit]


def code_name(number: int) -> str:
    """Return the name of a return code, `code_N` for an unknown one; empty for success."""
    return RETURN_CODES.get(number, f"code_{number}")


# member(structure, name) and put(structure, name, value) access a number in a structure of the binding. They bypass its
# Python hooks, which decode text and slow down each access.
member = object.__getattribute__
put = object.__setattr__
# Symbols whose function has another name in the binding.
_BOUND_AS = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlDeviceGetNvLinkRemotePciInfo",
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
