"""The lists of processes of drivers that the simulator does not have: the entries are written here, byte for byte."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE
from gpugauge.driver.nvidia.caller import code_name
from gpugauge.driver.nvidia.nvml import Nvml, use_library, used_library
from gpugauge.simulator.nvml.answers import INSUFFICIENT_SIZE, SUCCESS
from tests.drawn import cases
from tests.driver.nvidia.otherdriver import Driver
from tests.simulator.build import opened

_NONE = 0xFFFFFFFF
_SHORT, _LONG = struct.Struct("=I4xQII"), struct.Struct("=I4xQIIQ")
_COMPUTE = "nvmlDeviceGetComputeRunningProcesses"


def lists(pids: Callable[[int], int], entry: struct.Struct = _SHORT) -> Callable[..., int]:
    """Return a function of the library. `pids` is the number of processes by the number of the call."""
    calls = iter(range(1_000_000))

    def function(_handle: Any, count: Any, array: Any) -> int:
        processes, capacity = pids(next(calls)), count._obj.value if array is not None else 0
        count._obj.value = processes
        if processes > capacity:
            return INSUFFICIENT_SIZE
        for place in range(processes):
            values = (place + 1, 1000 * (place + 1), _NONE, _NONE, 77)[: 5 if entry is _LONG else 4]
            ctypes.memmove(ctypes.addressof(array) + place * entry.size, entry.pack(*values), entry.size)
        return SUCCESS

    return function


def reader(**functions: Callable[..., int] | None) -> Nvml:
    nvml = opened("gpus: {model: h100}")
    use_library(Driver(**functions))
    return nvml


def listed(nvml: Nvml) -> tuple[dict[int, int] | None, dict[str, str]]:
    values, errors = nvml.read(0, ["processes", "fast"])
    assert "utilization_percent" in values["fast"]
    processes = values["processes"].get("processes")
    return None if processes is None else {p["pid"]: p["used_memory_bytes"] for p in processes}, errors


def expected(count: int) -> dict[int, int]:
    return {pid: 1000 * pid for pid in range(1, count + 1)}


@cases("count", [1, 2, 3, 70, 300])
@cases("detailed", [True, False])
def test_entries_of_535_are_longer(count: int, detailed: bool) -> None:
    """535.98 took the long entries back, and got another function for their contents."""
    functions: dict[str, Any] = {"nvmlDeviceGetConfComputeMemSizeInfo": lambda *_: SUCCESS}
    if detailed:
        functions["nvmlDeviceGetRunningProcessDetailList"] = lambda *_: SUCCESS
    entry = _SHORT if detailed else _LONG

    assert listed(reader(**{f"{_COMPUTE}_v3": lists(lambda _: count, entry)}, **functions)) == (expected(count), {})


def test_drivers_before_510_have_another_version() -> None:
    older = {f"nvmlDeviceGet{kind}RunningProcesses_v3": None for kind in ("Compute", "Graphics", "MPSCompute")}

    assert listed(reader(**older, **{f"{_COMPUTE}_v2": lists(lambda _: 3)})) == (expected(3), {})


def test_list_that_grows_between_two_calls() -> None:
    growing = lists(lambda call: 100 + 90 * call)

    assert listed(reader(**{f"{_COMPUTE}_v3": growing})) == (expected(190), {})


def test_list_that_is_always_too_long_is_an_error() -> None:
    endless = lists(lambda call: 100 * 3**call)

    assert listed(reader(**{f"{_COMPUTE}_v3": endless})) == (None, {"processes": "insufficient_size"})


@cases("count", [65, 1 << 20, _NONE])
def test_more_entries_than_there_is_room_for(count: int) -> None:
    def liar(_handle: Any, out: Any, _array: Any) -> int:
        out._obj.value = count
        return SUCCESS

    assert listed(reader(**{f"{_COMPUTE}_v3": liar})) == (None, {"processes": IMPLAUSIBLE})
    assert listed(reader(**{f"{_COMPUTE}_v3": lists(lambda _: 2)})) == (expected(2), {})


def test_endless_room_is_not_allocated() -> None:
    def greedy(_handle: Any, out: Any, _array: Any) -> int:
        out._obj.value = _NONE
        return INSUFFICIENT_SIZE

    assert listed(reader(**{f"{_COMPUTE}_v3": greedy})) == (None, {"processes": "insufficient_size"})


@cases("code", [3, 13, 999])
def test_list_that_has_worked_and_fails_is_not_empty(code: int) -> None:
    nvml = opened("gpus: {model: h100}\nprocesses: [{pid: 4, gpus: [0], memory: 1GiB, load: 0.5}]")
    lists, fails = used_library().nvmlDeviceGetComputeRunningProcesses_v3, [False]  # type: ignore[attr-defined]  # ctypes
    use_library(Driver(nvmlDeviceGetComputeRunningProcesses_v3=lambda *a: code if fails[0] else lists(*a)))

    found = []
    for fails[0] in (False, True, False):
        values, errors = nvml.read(0, ["processes"])
        found.append(([p["pid"] for p in values["processes"].get("processes", ())], errors))

    assert found == [([4], {}), ([], {"processes": code_name(code)}), ([4], {})]
