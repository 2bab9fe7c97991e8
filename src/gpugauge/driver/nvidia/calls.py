"""Values that are read with a call of their own: one row for each.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gpugauge.driver.codes import COMPUTE_MODES, IMPLAUSIBLE, DriverError, Group
from gpugauge.driver.nvidia import plausible as valid
from gpugauge.driver.nvidia.caller import CLOCKS_EVENT_REASONS, Caller, member, named
from gpugauge.driver.nvidia.plausible import Check, each
from gpugauge.driver.nvidia.processes import running

# nvmlTemperatureSensors_t, nvmlClockType_t, nvmlTemperatureThresholds_t.
_GPU_SENSOR = 0
_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)
_SHUTDOWN, _SLOWDOWN, _MEMORY_MAX, _GPU_MAX = range(4)
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_MEMORY_PARTS = ("total", "used", "free", "reserved")
_MAX_FANS = 16
_CPU_WORDS = 16  # of 64 CPUs

# Reads a device handle: one value, or one for each field of the row; None for a value that the source does not have.
Source: TypeAlias = Callable[[Caller, Any], Any]


class Call:
    """One row: the group, the fields with their checks, and the sources, of which the first supported one is used."""

    __slots__ = ("fields", "group", "sources")

    def __init__(self, group: Group, fields: Mapping[str, Check], sources: tuple[Source, ...]) -> None:
        self.group, self.fields, self.sources = group, fields, sources


def _plain(function: str, *arguments: Any) -> Source:
    return lambda call, handle: call(function, handle, *arguments)


def _flag(function: str) -> Source:
    return lambda call, handle: _as_flag(call(function, handle))


def _as_flag(value: int) -> bool | int:
    return bool(value) if valid.FLAG(value) else value  # the check rejects other values


def _named(function: str, check: Check, name: Callable[[int], Any]) -> Source:
    """Return the source for the name of a number that a function returns. It raises DriverError, too."""

    def read(call: Caller, handle: Any) -> Any:
        number = call(function, handle)
        if not check(number):
            raise DriverError(IMPLAUSIBLE, function)
        return name(number)

    return read


def _reasons(function: str) -> Source:
    return _named(function, valid.BITS, lambda mask: named(mask, CLOCKS_EVENT_REASONS))


def _first(function: str) -> Source:
    return lambda call, handle: call(function, handle)[0]


def _pci_bus_id(call: Caller, handle: Any) -> Any:
    """Return the bus id; the binding decodes it on access, so that the access may fail like a call."""
    function = "nvmlDeviceGetPciInfo_v3"
    ask = call.bound(function, function)
    return call.timed(function, lambda: ask(handle).busId)


def _utilization(call: Caller, handle: Any) -> tuple[int, int]:
    rates = call("nvmlDeviceGetUtilizationRates", handle)
    return member(rates, "gpu"), member(rates, "memory")


def memory(call: Caller, handle: Any) -> tuple[Any, ...]:
    """Return total, used, free and reserved bytes of a GPU or of a MIG device."""
    function = "nvmlDeviceGetMemoryInfo_v2"
    found = call(function, handle, version=call.bound("nvmlMemory_v2", function))
    return _fitting(function, *(member(found, part) for part in _MEMORY_PARTS))


def _memory_v1(call: Caller, handle: Any) -> tuple[Any, ...]:
    """Return the same with drivers before R510, where `used` includes the reserved bytes."""
    function = "nvmlDeviceGetMemoryInfo"
    found = call(function, handle)
    return _fitting(function, found.total, found.used, found.free, None)


def _fitting(function: str, total: int, *parts: int | None) -> tuple[Any, ...]:
    """Return the sizes of a memory, None for all if the GPU has none of its own. Raises DriverError."""
    if not total:
        return None, *(None for _ in parts)
    if any(part is not None and part > total for part in parts):
        raise DriverError(IMPLAUSIBLE, function)
    return total, *parts


def _bar1(call: Caller, handle: Any) -> tuple[int, int]:
    function = "nvmlDeviceGetBAR1MemoryInfo"
    found = call(function, handle)
    total, used = _fitting(function, member(found, "bar1Total"), member(found, "bar1Used"))
    return total, used


def _row_remapper(call: Caller, handle: Any) -> dict[str, int]:
    found = call("nvmlDeviceGetRowRemapperHistogram", handle)
    return {name: getattr(found, name) for name in ("max", "high", "partial", "low", "none")}


def _fans(read: Callable[[Caller, Any, int], int]) -> Source:
    """Return the source for a value of each fan by number, counted from 0; its value is None without fans."""

    def read_all(call: Caller, handle: Any) -> dict[str, int] | None:
        count = call("nvmlDeviceGetNumFans", handle)
        return {str(fan): read(call, handle, fan) for fan in range(min(count, _MAX_FANS))} or None

    return read_all


def _fan_speed(call: Caller, handle: Any, fan: int) -> int:
    return call("nvmlDeviceGetFanSpeed_v2", handle, fan)  # type: ignore[no-any-return]  # ctypes


def _fan_rpm(call: Caller, handle: Any, fan: int) -> int:
    """Return the speed of any fan; the function of the binding reads the first fan only."""
    function = "nvmlDeviceGetFanSpeedRPM"
    # nvidia-ml-py 12.560 has neither.
    kind, version = call.bound("c_nvmlFanSpeedInfo_t", function), call.bound("nvmlFanSpeedInfo_v1", function)
    info = kind(version=version, fan=fan)

    def ask() -> int:
        code = call.binding._nvmlGetFunctionPointer(function)(handle, ctypes.byref(info))  # noqa: SLF001  (the binding has no public function)
        if code:
            raise call.binding.NVMLError(code)
        return info.speed  # type: ignore[no-any-return]  # ctypes

    return call.timed(function, ask)  # type: ignore[no-any-return]  # ctypes


def _local_cpus(call: Caller, handle: Any) -> str:
    """Return the CPUs near a device as a list such as 0-31,64-95; empty if the last one of the mask is set, too."""
    words = [int(word) for word in call("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS)]
    mask = 0 if words[-1] else sum(word << 64 * place for place, word in enumerate(words))
    cpus = [cpu for cpu in range(64 * _CPU_WORDS) if mask >> cpu & 1]
    begins = [cpu for cpu in cpus if not cpu or not mask >> (cpu - 1) & 1]
    ends = [cpu for cpu in cpus if not mask >> (cpu + 1) & 1]
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in zip(begins, ends, strict=True))


# FP32 cores of one multiprocessor by compute capability (CUDA C++ Programming Guide, arithmetic instructions).
_CORES_PER_MULTIPROCESSOR = {
    **dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)], 64),
    **dict.fromkeys([(5, 0), (5, 2), (5, 3), (6, 1), (6, 2), (8, 6), (8, 7), (8, 9), (9, 0)], 128),
    **dict.fromkeys([(10, 0), (10, 3), (12, 0), (12, 1)], 128),
}


def multiprocessors(static: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of streaming multiprocessors by its field; {} for an architecture that the table lacks."""
    cores = _CORES_PER_MULTIPROCESSOR.get(static.get("compute_capability", (0, 0)))
    count = static.get("core_count")
    return {"multiprocessors": count // cores} if cores and count and count % cores == 0 else {}


def _row(group: Group, field: str, check: Check, *sources: Source | str) -> Call:
    """Return a row; a source may be the name of a function that returns the value."""
    return Call(group, {field: check}, tuple(_plain(each) if isinstance(each, str) else each for each in sources))


CALLS = (
    _row("static", "uuid", valid.TEXT, "nvmlDeviceGetUUID"),
    _row("static", "name", valid.TEXT, "nvmlDeviceGetName"),
    _row("static", "pci_bus_id", valid.TEXT, _pci_bus_id),
    _row("static", "minor_number", valid.NUMBER, "nvmlDeviceGetMinorNumber"),
    _row("static", "serial", valid.TEXT, "nvmlDeviceGetSerial"),
    _row("static", "board_part_number", valid.TEXT, "nvmlDeviceGetBoardPartNumber"),
    _row("static", "vbios_version", valid.TEXT, "nvmlDeviceGetVbiosVersion"),
    _row("static", "architecture", valid.NUMBER, "nvmlDeviceGetArchitecture"),
    _row("static", "compute_capability", valid.CAPABILITY, "nvmlDeviceGetCudaComputeCapability"),
    _row("static", "core_count", valid.COUNT, "nvmlDeviceGetNumGpuCores"),
    _row("static", "local_cpus", valid.TEXT, _local_cpus),
    _row("static", "numa_node", valid.NODE, "nvmlDeviceGetNumaNodeId"),
    _row("static", "power_limit_default_milliwatts", valid.LIMIT, "nvmlDeviceGetPowerManagementDefaultLimit"),
    Call(
        "static",
        {"power_limit_min_milliwatts": valid.LIMIT, "power_limit_max_milliwatts": valid.LIMIT},
        (_plain("nvmlDeviceGetPowerManagementLimitConstraints"),),
    ),
    _row("static", "clock_graphics_max_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetMaxClockInfo", _GRAPHICS)),
    _row("static", "clock_sm_max_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetMaxClockInfo", _SM)),
    _row("static", "clock_memory_max_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetMaxClockInfo", _MEMORY)),
    _row("static", "clock_video_max_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetMaxClockInfo", _VIDEO)),
    _row("static", "pcie_generation_max", valid.LANES, "nvmlDeviceGetMaxPcieLinkGeneration"),
    _row("static", "pcie_width_max", valid.LANES, "nvmlDeviceGetMaxPcieLinkWidth"),
    _row("static", "temperature_shutdown_celsius", valid.CELSIUS, _plain(_THRESHOLD, _SHUTDOWN)),
    _row("static", "temperature_slowdown_celsius", valid.CELSIUS, _plain(_THRESHOLD, _SLOWDOWN)),
    _row("static", "temperature_gpu_max_celsius", valid.CELSIUS, _plain(_THRESHOLD, _GPU_MAX)),
    _row("static", "temperature_memory_max_celsius", valid.CELSIUS, _plain(_THRESHOLD, _MEMORY_MAX)),
    _row(
        "static",
        "clocks_event_reasons_supported",
        valid.ANY,
        _reasons("nvmlDeviceGetSupportedClocksEventReasons"),
        _reasons("nvmlDeviceGetSupportedClocksThrottleReasons"),  # before R535
    ),
    _row(
        "static",
        "gpm_supported",
        valid.ANY,
        lambda call, handle: bool(call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice),
    ),
    Call("fast", {"utilization_percent": valid.PERCENT, "memory_utilization_percent": valid.PERCENT}, (_utilization,)),
    Call("normal", {f"memory_{part}_bytes": valid.BYTES for part in _MEMORY_PARTS}, (memory, _memory_v1)),
    Call("normal", {"bar1_total_bytes": valid.BYTES, "bar1_used_bytes": valid.BYTES}, (_bar1,)),
    _row("normal", "power_milliwatts", valid.MILLIWATTS, "nvmlDeviceGetPowerUsage"),
    _row("normal", "power_limit_milliwatts", valid.MILLIWATTS, "nvmlDeviceGetEnforcedPowerLimit"),
    _row("normal", "energy_millijoules", valid.COUNTER, "nvmlDeviceGetTotalEnergyConsumption"),
    _row(
        "normal",
        "temperature_celsius",
        valid.CELSIUS,
        _plain("nvmlDeviceGetTemperatureV", _GPU_SENSOR),
        _plain("nvmlDeviceGetTemperature", _GPU_SENSOR),  # before R570
    ),
    _row("normal", "clock_graphics_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetClockInfo", _GRAPHICS)),
    _row("normal", "clock_sm_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetClockInfo", _SM)),
    _row("normal", "clock_memory_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetClockInfo", _MEMORY)),
    _row("normal", "clock_video_mhz", valid.MEGAHERTZ, _plain("nvmlDeviceGetClockInfo", _VIDEO)),
    _row("normal", "performance_state", valid.P_STATE, "nvmlDeviceGetPerformanceState"),
    _row(
        "normal",
        "clocks_event_reasons",
        valid.ANY,
        _reasons("nvmlDeviceGetCurrentClocksEventReasons"),
        _reasons("nvmlDeviceGetCurrentClocksThrottleReasons"),  # before R535
    ),
    _row("normal", "encoder_utilization_percent", valid.PERCENT, _first("nvmlDeviceGetEncoderUtilization")),
    _row("normal", "decoder_utilization_percent", valid.PERCENT, _first("nvmlDeviceGetDecoderUtilization")),
    _row("normal", "jpeg_utilization_percent", valid.PERCENT, _first("nvmlDeviceGetJpgUtilization")),
    _row("normal", "ofa_utilization_percent", valid.PERCENT, _first("nvmlDeviceGetOfaUtilization")),
    _row("normal", "encoder_sessions", valid.NUMBER, _first("nvmlDeviceGetEncoderStats")),
    _row("slow", "row_remapper_banks", each(valid.BITS), _row_remapper),
    _row("slow", "pcie_generation", valid.LANES, "nvmlDeviceGetCurrPcieLinkGeneration"),
    _row("slow", "pcie_width", valid.LANES, "nvmlDeviceGetCurrPcieLinkWidth"),
    _row("slow", "fan_speed_percent", each(valid.FAN_PERCENT), _fans(_fan_speed)),
    _row("slow", "fan_rpm", each(valid.RPM), _fans(_fan_rpm)),
    _row(
        "slow",
        "compute_mode",
        valid.ANY,
        _named("nvmlDeviceGetComputeMode", valid.MODE, dict(enumerate(COMPUTE_MODES)).get),
    ),
    _row("slow", "persistence_mode", valid.FLAG, _flag("nvmlDeviceGetPersistenceMode")),
    Call(
        "slow",
        {"mig_mode": valid.FLAG, "mig_mode_pending": valid.FLAG},
        (lambda call, handle: tuple(map(_as_flag, call("nvmlDeviceGetMigMode", handle))),),
    ),
    _row("slow", "display_active", valid.FLAG, _flag("nvmlDeviceGetDisplayActive")),
    _row("slow", "accounting_mode", valid.FLAG, _flag("nvmlDeviceGetAccountingMode")),
    _row("processes", "compute", valid.ANY, running("compute", "nvmlDeviceGetComputeRunningProcesses")),
    _row("processes", "graphics", valid.ANY, running("graphics", "nvmlDeviceGetGraphicsRunningProcesses")),
    _row("processes", "mps", valid.ANY, running("mps", "nvmlDeviceGetMPSComputeRunningProcesses")),
)
