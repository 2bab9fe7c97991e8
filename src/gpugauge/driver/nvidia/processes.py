"""The processes on a GPU, by kind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import byref, c_uint
from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE, INSUFFICIENT_SIZE, SUCCESS, DriverError
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.plausible import BYTES, NOT_AVAILABLE

# nvmlProcessInfo_t of both functions: pid, used bytes, GPU and compute instance; the last one: protected bytes.
_ENTRY, _LONG_ENTRY = struct.Struct("=I4xQII"), struct.Struct("=I4xQII8x")
# The third version of the functions has the long entries in the drivers 535.43 to 535.86 only. They are recognised by
# what came with these entries, and by what replaced them (nvitop#79).
_CAME_WITH_LONG, _REPLACED_LONG = "nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"
_CAPACITY, _MAX_CAPACITY = 64, 1 << 14  # entries
_TRIES = 4  # processes may start between two calls


def running(kind: str, function: str) -> Callable[[Caller, Any], list[dict[str, Any]]]:
    """Return the source of the processes of a kind, by the name of the function without its version."""

    def read(call: Caller, handle: Any) -> list[dict[str, Any]]:
        if not call.exports(f"{function}_v3"):  # before R510
            return _listed(call, handle, kind, f"{function}_v2", long=False)
        long = call.exports(_CAME_WITH_LONG) and not call.exports(_REPLACED_LONG)
        return _listed(call, handle, kind, f"{function}_v3", long=long)

    return read


def _listed(call: Caller, handle: Any, kind: str, function: str, *, long: bool) -> list[dict[str, Any]]:
    entry = _LONG_ENTRY if long else _ENTRY
    structure = "c_nvmlProcessDetail_v1_t" if long else "c_nvmlProcessInfo_v2_t"
    count, code, capacity = c_uint(), INSUFFICIENT_SIZE, _CAPACITY
    for _ in range(_TRIES):
        buffer = call.buffer(structure, capacity, function)
        count.value = buffer.capacity
        code = call.code(function, handle, byref(count), buffer.array)
        if code != INSUFFICIENT_SIZE or count.value > _MAX_CAPACITY:
            break
        capacity = 2 * count.value
    taken = buffer.take(count.value, buffer.capacity)
    if code != SUCCESS:
        raise DriverError(code, function)
    found = [
        {
            "pid": pid,
            "kind": kind,
            "used_memory_bytes": used if BYTES(used) else None,
            "gpu_instance_id": None if gpu_instance == NOT_AVAILABLE else gpu_instance,
            "compute_instance_id": None if compute_instance == NOT_AVAILABLE else compute_instance,
        }
        for pid, used, gpu_instance, compute_instance in entry.iter_unpack(taken)
        if 0 < pid < NOT_AVAILABLE
    ]
    if count.value > buffer.capacity or (taken and not found):
        raise DriverError(IMPLAUSIBLE, function)
    return found
