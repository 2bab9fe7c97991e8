"""What is read from a card: one row for each call, and one for each field value.

The first source that the card supports is used. https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpugauge.driver.api import DriverError, Group
from gpugauge.driver.plausible import (
    ANY,
    BYTES,
    CAPABILITY,
    CELSIUS,
    COUNT,
    MEGAHERTZ,
    MILLIJOULES,
    MILLIWATTS,
    NUMBER,
    P_STATE,
    PERCENT,
    TEXT,
    Check,
)

_FUNCTION_NOT_FOUND = 13
_NOT_AVAILABLE = 0xFFFFFFFF  # what NVML writes into 32 bits when it has no answer

# NVML's numbers: nvmlTemperatureSensors_t and nvmlClockType_t.
_GPU_SENSOR = 0
_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)


@dataclass(frozen=True, slots=True)
class Source:
    """A function as the library exports it, and how to read it with a binding from a handle: one value, or one for each
    field.
    """

    function: str
    read: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One row: how often, which fields with their checks, and the sources; the first supported one is used."""

    group: Group
    fields: Mapping[str, Check]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FieldValue:
    """One row of the field values, which a group reads in a single call: NVML's field id and scope."""

    group: Group
    field: str
    check: Check
    id: int
    scope: int = 0


def _bound(binding: Any, function: str) -> Callable[..., Any]:
    """Return the binding's function; a binding too old to have it is like a library without the symbol."""
    try:
        return getattr(binding, function)  # type: ignore[no-any-return]
    except AttributeError:
        raise DriverError(_FUNCTION_NOT_FOUND, function) from None


def _plain(function: str, *arguments: Any) -> Source:
    """A source whose binding has the name of its symbol."""
    return Source(function, lambda binding, handle: _bound(binding, function)(handle, *arguments))


def _utilization(binding: Any, handle: Any) -> tuple[int, int]:
    rates = binding.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _memory(binding: Any, handle: Any) -> tuple[int, int, int, int]:
    memory = binding.nvmlDeviceGetMemoryInfo(handle, version=binding.nvmlMemory_v2)
    return memory.total, memory.used, memory.free, memory.reserved


def _memory_v1(binding: Any, handle: Any) -> tuple[int, int, int, None]:
    """Before R510: `used` includes what the driver itself reserves, and the two cannot be told apart."""
    memory = binding.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.used, memory.free, None


def _processes(kind: str, function: str) -> Source:
    def read(binding: Any, handle: Any) -> list[dict[str, Any]]:
        return [
            {
                "pid": p.pid,
                "kind": kind,
                "used_memory_bytes": p.usedGpuMemory
                if p.usedGpuMemory is not None and BYTES(p.usedGpuMemory)
                else None,
                "gpu_instance_id": None if p.gpuInstanceId == _NOT_AVAILABLE else p.gpuInstanceId,
            }
            for p in _bound(binding, function)(handle)
            if 0 < p.pid < _NOT_AVAILABLE
        ]

    return Source(function, read)


CALLS = (
    Call("static", {"uuid": TEXT}, (_plain("nvmlDeviceGetUUID"),)),
    Call("static", {"name": TEXT}, (_plain("nvmlDeviceGetName"),)),
    Call(
        "static",
        {"pci_bus_id": TEXT},
        (Source("nvmlDeviceGetPciInfo_v3", lambda binding, handle: binding.nvmlDeviceGetPciInfo_v3(handle).busId),),
    ),
    Call("static", {"minor_number": NUMBER}, (_plain("nvmlDeviceGetMinorNumber"),)),
    Call("static", {"serial": TEXT}, (_plain("nvmlDeviceGetSerial"),)),
    Call("static", {"vbios_version": TEXT}, (_plain("nvmlDeviceGetVbiosVersion"),)),
    Call("static", {"architecture": NUMBER}, (_plain("nvmlDeviceGetArchitecture"),)),
    Call("static", {"compute_capability": CAPABILITY}, (_plain("nvmlDeviceGetCudaComputeCapability"),)),
    Call("static", {"core_count": COUNT}, (_plain("nvmlDeviceGetNumGpuCores"),)),
    Call(
        "fast",
        {"utilization_percent": PERCENT, "memory_utilization_percent": PERCENT},
        (Source("nvmlDeviceGetUtilizationRates", _utilization),),
    ),
    Call(
        "normal",
        {
            "memory_total_bytes": BYTES,
            "memory_used_bytes": BYTES,
            "memory_free_bytes": BYTES,
            "memory_reserved_bytes": BYTES,
        },
        (Source("nvmlDeviceGetMemoryInfo_v2", _memory), Source("nvmlDeviceGetMemoryInfo", _memory_v1)),
    ),
    Call("normal", {"power_milliwatts": MILLIWATTS}, (_plain("nvmlDeviceGetPowerUsage"),)),
    Call("normal", {"power_limit_milliwatts": MILLIWATTS}, (_plain("nvmlDeviceGetEnforcedPowerLimit"),)),
    Call("normal", {"energy_millijoules": MILLIJOULES}, (_plain("nvmlDeviceGetTotalEnergyConsumption"),)),
    Call(
        "normal",
        {"temperature_celsius": CELSIUS},
        (
            _plain("nvmlDeviceGetTemperatureV", _GPU_SENSOR),
            _plain("nvmlDeviceGetTemperature", _GPU_SENSOR),  # before R570
        ),
    ),
    Call("normal", {"clock_graphics_mhz": MEGAHERTZ}, (_plain("nvmlDeviceGetClockInfo", _GRAPHICS),)),
    Call("normal", {"clock_sm_mhz": MEGAHERTZ}, (_plain("nvmlDeviceGetClockInfo", _SM),)),
    Call("normal", {"clock_memory_mhz": MEGAHERTZ}, (_plain("nvmlDeviceGetClockInfo", _MEMORY),)),
    Call("normal", {"clock_video_mhz": MEGAHERTZ}, (_plain("nvmlDeviceGetClockInfo", _VIDEO),)),
    Call("normal", {"performance_state": P_STATE}, (_plain("nvmlDeviceGetPerformanceState"),)),
    Call("processes", {"compute": ANY}, (_processes("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),)),
    Call("processes", {"graphics": ANY}, (_processes("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),)),
    Call("processes", {"mps": ANY}, (_processes("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),)),
)

FIELD_VALUES = (FieldValue("normal", "memory_temperature_celsius", CELSIUS, 82),)
