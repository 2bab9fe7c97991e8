"""The library's functions about one card. Arguments after the handle come as pynvml passes them: numbers, buffers, and
references made by `byref`, whose target is `_obj`. Every function returns an NVML code.
"""
# ruff: noqa: SLF001  (`_obj` is what ctypes offers)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from gpugauge.driver.simulated.world import Card

SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
_INSUFFICIENT_SIZE = 7

_NOT_AVAILABLE_32 = 0xFFFFFFFF
_NOT_AVAILABLE_64 = 0xFFFFFFFFFFFFFFFF
_VALUE_TYPE_UNSIGNED_INT = 1

DeviceFunction: TypeAlias = Callable[..., int]  # (card, second, the call's other arguments)


def _number(answer: Callable[[Card, float], int]) -> DeviceFunction:
    """A function that writes one number."""

    def function(card: Card, t: float, out: Any) -> int:
        out._obj.value = answer(card, t)
        return SUCCESS

    return function


def _text(answer: Callable[[Card], str]) -> DeviceFunction:
    """A function that fills a buffer."""

    def function(card: Card, _t: float, buffer: Any, length: Any) -> int:
        return fill(buffer, length, answer(card))

    return function


def _structure(answer: Callable[[Card, float], dict[str, Any]]) -> DeviceFunction:
    """A function that fills a structure."""

    def function(card: Card, t: float, out: Any) -> int:
        for name, value in answer(card, t).items():
            setattr(out._obj, name, value)
        return SUCCESS

    return function


def fill(buffer: Any, length: Any, text: str) -> int:
    """Write a text into a buffer, if it is long enough."""
    data = text.encode()
    if len(data) >= plain(length):
        return _INSUFFICIENT_SIZE
    buffer.value = data
    return SUCCESS


def plain(number: Any) -> int:
    """Return a number that came as a ctypes object or as an int."""
    return int(getattr(number, "value", number))


def _memory(card: Card, t: float) -> dict[str, Any]:
    used = card.memory_used(t)
    free = card.memory_total - card.memory_reserved - used
    return {"total": card.memory_total, "reserved": card.memory_reserved, "used": used, "free": free}


def _memory_v1(card: Card, t: float) -> dict[str, Any]:
    """The older structure: what the driver reserves counts as used."""
    used = card.memory_used(t) + card.memory_reserved
    return {"total": card.memory_total, "used": used, "free": card.memory_total - used}


def _utilization(card: Card, t: float) -> dict[str, Any]:
    return dict(zip(("gpu", "memory"), card.utilization(t), strict=True))


def _compute_capability(card: Card, _t: float, major: Any, minor: Any) -> int:
    major._obj.value, minor._obj.value = card.compute_capability
    return SUCCESS


def _clock(card: Card, t: float, domain: Any, out: Any) -> int:
    megahertz = card.clock(plain(domain), t)
    if megahertz is None:
        return INVALID_ARGUMENT
    out._obj.value = megahertz
    return SUCCESS


def _temperature(card: Card, t: float, sensor: Any, out: Any) -> int:
    if plain(sensor) != 0:
        return INVALID_ARGUMENT
    out._obj.value = card.temperature(t)
    return SUCCESS


def _temperature_v(card: Card, t: float, out: Any) -> int:
    if out._obj.sensorType != 0:
        return INVALID_ARGUMENT
    out._obj.temperature = card.temperature(t)
    return SUCCESS


# By field id: the values that nvmlDeviceGetFieldValues knows.
FIELD_VALUES: dict[int, Callable[[Card, float], int]] = {
    82: lambda card, t: card.temperature(t) + 6,  # memory temperature
}


def _field_values(card: Card, t: float, count: Any, values: Any) -> int:
    for i in range(plain(count)):
        value = values._obj[i]
        answer = FIELD_VALUES.get(value.fieldId)
        if answer is None or value.fieldId in card.unsupported_fields:
            value.nvmlReturn = NOT_SUPPORTED
            continue
        value.nvmlReturn = SUCCESS
        value.valueType = _VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = answer(card, t)
    return SUCCESS


def _processes(kind: str) -> DeviceFunction:
    """A list of processes: without an array, or with one too small, only their number."""

    def function(card: Card, t: float, count: Any, array: Any) -> int:
        running = card.running(kind, t)
        room = 0 if array is None else count._obj.value
        count._obj.value = len(running)
        if len(running) > room:
            return _INSUFFICIENT_SIZE
        for i, process in enumerate(running):
            entry = array[i]
            entry.pid = process.pid
            entry.usedGpuMemory = _NOT_AVAILABLE_64 if process.memory is None else process.memory
            entry.gpuInstanceId = entry.computeInstanceId = _NOT_AVAILABLE_32
        return SUCCESS

    return function


DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {
    "nvmlDeviceGetUUID": _text(lambda card: card.uuid),
    "nvmlDeviceGetName": _text(lambda card: card.name),
    "nvmlDeviceGetSerial": _text(lambda card: card.serial),
    "nvmlDeviceGetVbiosVersion": _text(lambda card: card.vbios),
    "nvmlDeviceGetPciInfo_v3": _structure(lambda card, _t: {"busId": card.bus_id.encode()}),
    "nvmlDeviceGetMinorNumber": _number(lambda card, _t: card.index),
    "nvmlDeviceGetArchitecture": _number(lambda card, _t: card.architecture),
    "nvmlDeviceGetCudaComputeCapability": _compute_capability,
    "nvmlDeviceGetNumGpuCores": _number(lambda card, _t: card.cores),
    "nvmlDeviceGetUtilizationRates": _structure(_utilization),
    "nvmlDeviceGetMemoryInfo_v2": _structure(_memory),
    "nvmlDeviceGetMemoryInfo": _structure(_memory_v1),
    "nvmlDeviceGetPowerUsage": _number(lambda card, t: card.power(t)),
    "nvmlDeviceGetEnforcedPowerLimit": _number(lambda card, _t: round(card.power_limit_watts * 1000)),
    "nvmlDeviceGetTotalEnergyConsumption": _number(lambda card, t: card.energy(t)),
    "nvmlDeviceGetTemperatureV": _temperature_v,
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetPerformanceState": _number(lambda card, t: card.performance_state(t)),
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _processes("mps"),
}
