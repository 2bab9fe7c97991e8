"""The library's functions about one card or MIG device that only read. Every function returns an NVML code."""
# ruff: noqa: SLF001  (`_obj` is what ctypes offers)

from __future__ import annotations

from typing import Any

from gpugauge.simulator.device.device import MIG_CHANGE, Card
from gpugauge.simulator.device.health import REASONS
from gpugauge.simulator.device.instance import Instance
from gpugauge.simulator.nvml.answers import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_AVAILABLE_32,
    NOT_AVAILABLE_64,
    SUCCESS,
    DeviceFunction,
    chosen,
    number,
    numbers,
    structure,
    text,
)

_BAR1_BYTES = 64 << 30
_SAMPLING_MICROSECONDS = 166_667
_THRESHOLDS = (95, 92, 95, 87)  # shutdown, slowdown, memory, GPU
_EVENTS = 0x8 | 0x2 | 0x1


def _memory(card: Card | Instance, t: float) -> dict[str, Any]:
    used = card.memory_used(t)
    free = card.memory_total - card.memory_reserved - used
    return {"total": card.memory_total, "reserved": card.memory_reserved, "used": used, "free": free}


def _memory_v1(card: Card, t: float) -> dict[str, Any]:
    """The older structure: what the driver reserves counts as used."""
    used = card.memory_used(t) + card.memory_reserved
    return {"total": card.memory_total, "used": used, "free": card.memory_total - used}


def _bar1(card: Card, t: float) -> dict[str, Any]:
    used = 3 << 20 if card.occupied(t) else 1 << 20
    return {"bar1Total": _BAR1_BYTES, "bar1Used": used, "bar1Free": _BAR1_BYTES - used}


def _utilization(card: Card, t: float) -> dict[str, Any]:
    return {engine: card.utilization(t, engine) for engine in ("gpu", "memory")}


def _engine(name: str) -> DeviceFunction:
    return numbers(lambda card, t: (card.utilization(t, name), _SAMPLING_MICROSECONDS))


def _temperature_v(card: Card, t: float, out: Any) -> int:
    if out._obj.sensorType != 0:
        return INVALID_ARGUMENT
    out._obj.temperature = card.temperature(t)
    return SUCCESS


def _fan(card: Card, t: float, fan: int) -> int | None:
    """Percent of the maximum: with the temperature from 60 degrees on."""
    return max(30, min(100, 30 + 3 * (card.temperature(t) - 60))) if fan < card.figures["fans"] else None


def _fan_rpm(card: Card, t: float, out: Any) -> int:
    percent = _fan(card, t, out._obj.fan)
    if percent is None:
        return INVALID_ARGUMENT
    out._obj.speed = 31 * percent
    return SUCCESS


def _nvlink(card: Card, _t: float, link: int) -> int | None:
    return int(link not in card.health.nvlinks_down) if link < card.figures["nvlinks"] else None


def _processes(kind: str) -> DeviceFunction:
    """A list of processes: without an array, or with one too small, only their number."""

    def function(card: Card, t: float, count: Any, array: Any) -> int:
        running = card.running(kind, t)
        room = 0 if array is None else count._obj.value
        count._obj.value = len(running)
        if len(running) > room:
            return INSUFFICIENT_SIZE
        for entry, process in zip(array or (), running, strict=False):
            entry.pid = process.pid
            entry.usedGpuMemory = NOT_AVAILABLE_64 if process.memory is None else process.memory
            entry.gpuInstanceId = entry.computeInstanceId = NOT_AVAILABLE_32
            if card.instances and process.instance is not None:
                entry.gpuInstanceId = card.instances[process.instance].gpu_instance_id
                entry.computeInstanceId = card.instances[process.instance].compute_instance_id
        return SUCCESS

    return function


_REASONS_SUPPORTED = sum(REASONS.values())

DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {
    "nvmlDeviceGetUUID": text(lambda card: card.uuid),
    "nvmlDeviceGetName": text(lambda card: card.name),
    "nvmlDeviceGetSerial": text(lambda card: card.serial),
    "nvmlDeviceGetBoardPartNumber": text(lambda card: card.figures["part_number"]),
    "nvmlDeviceGetVbiosVersion": text(lambda card: card.figures["vbios"]),
    "nvmlDeviceGetPciInfo_v3": structure(lambda card, _t: {"busId": card.bus_id.encode()}),
    "nvmlDeviceGetMinorNumber": number(lambda card, _t: card.index),
    "nvmlDeviceGetArchitecture": number(lambda card, _t: card.figures["architecture"]),
    "nvmlDeviceGetCudaComputeCapability": numbers(lambda card, _t: card.figures["compute_capability"]),
    "nvmlDeviceGetNumGpuCores": number(lambda card, _t: card.figures["cores"]),
    "nvmlDeviceGetNumaNodeId": number(lambda card, _t: card.index // 4),
    "nvmlDeviceGetUtilizationRates": structure(_utilization),
    "nvmlDeviceGetEncoderUtilization": _engine("encoder"),
    "nvmlDeviceGetDecoderUtilization": _engine("decoder"),
    "nvmlDeviceGetJpgUtilization": _engine("jpeg"),
    "nvmlDeviceGetOfaUtilization": _engine("ofa"),
    "nvmlDeviceGetEncoderStats": numbers(lambda card, t: (int(card.utilization(t, "encoder") > 0), 0, 0)),
    "nvmlDeviceGetMemoryInfo_v2": structure(_memory),
    "nvmlDeviceGetMemoryInfo": structure(_memory_v1),
    "nvmlDeviceGetBAR1MemoryInfo": structure(_bar1),
    "nvmlDeviceGetPowerUsage": number(lambda card, t: card.power(t)),
    "nvmlDeviceGetEnforcedPowerLimit": number(lambda card, _t: round(card.power_limit_watts * 1000)),
    "nvmlDeviceGetPowerManagementDefaultLimit": number(lambda card, _t: round(card.default_limit_watts * 1000)),
    "nvmlDeviceGetPowerManagementLimitConstraints": numbers(
        lambda card, _t: (round(card.default_limit_watts * 250), round(card.default_limit_watts * 1000))
    ),
    "nvmlDeviceGetTotalEnergyConsumption": number(lambda card, t: card.energy(t)),
    "nvmlDeviceGetTemperatureV": _temperature_v,
    "nvmlDeviceGetTemperature": chosen(lambda card, t, sensor: card.temperature(t) if sensor == 0 else None),
    "nvmlDeviceGetTemperatureThreshold": chosen(
        lambda _card, _t, which: _THRESHOLDS[which] if which < len(_THRESHOLDS) else None
    ),
    "nvmlDeviceGetClockInfo": chosen(lambda card, t, domain: card.clock(domain, t)),
    "nvmlDeviceGetMaxClockInfo": chosen(lambda card, _t, domain: card.clock_max(domain)),
    "nvmlDeviceGetPerformanceState": number(lambda card, t: card.performance_state(t)),
    "nvmlDeviceGetCurrentClocksEventReasons": number(lambda card, t: card.clocks_event_reasons(t)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": number(lambda card, t: card.clocks_event_reasons(t)),
    "nvmlDeviceGetSupportedClocksEventReasons": number(lambda _card, _t: _REASONS_SUPPORTED),
    "nvmlDeviceGetSupportedClocksThrottleReasons": number(lambda _card, _t: _REASONS_SUPPORTED),
    "nvmlDeviceGetRowRemapperHistogram": structure(
        lambda card, _t: (
            {"max": 640 - card.health.remapped_rows.get("uncorrectable", 0), "high": 0}
            | {"partial": card.health.remapped_rows.get("uncorrectable", 0), "low": 0, "none": 0}
        )
    ),
    "nvmlDeviceGetCurrPcieLinkGeneration": number(
        lambda card, _t: card.health.pcie_generation or card.figures["pcie"][0]
    ),
    "nvmlDeviceGetMaxPcieLinkGeneration": number(lambda card, _t: card.figures["pcie"][0]),
    "nvmlDeviceGetCurrPcieLinkWidth": number(lambda card, _t: card.health.pcie_width or card.figures["pcie"][1]),
    "nvmlDeviceGetMaxPcieLinkWidth": number(lambda card, _t: card.figures["pcie"][1]),
    "nvmlDeviceGetNvLinkState": chosen(_nvlink),
    "nvmlDeviceGetNumFans": number(lambda card, _t: card.figures["fans"]),
    "nvmlDeviceGetFanSpeed_v2": chosen(_fan),
    "nvmlDeviceGetFanSpeedRPM": _fan_rpm,
    "nvmlDeviceGetComputeMode": number(lambda _card, _t: 0),
    "nvmlDeviceGetPersistenceMode": number(lambda _card, _t: 1),
    "nvmlDeviceGetDisplayActive": number(lambda card, t: int(bool(card.running("graphics", t)))),
    "nvmlDeviceGetAccountingMode": number(lambda _card, _t: 0),
    "nvmlDeviceGetMigMode": numbers(lambda card, _t: (int(card.instances is not None),) * 2),
    "nvmlDeviceGetMaxMigDeviceCount": number(lambda card, _t: 7 if card.figures["mig_slice_sms"] else 0),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _processes("mps"),
    "nvmlDeviceGetSupportedEventTypes": number(
        lambda card, _t: _EVENTS | (MIG_CHANGE if card.figures["mig_slice_sms"] else 0)
    ),
    "nvmlGpmQueryDeviceSupport": structure(
        lambda card, _t: {"isSupportedDevice": int("gpm" not in card.figures["lacks"])}
    ),
}

# What answers to the handle of a MIG device too.
MIG_FUNCTIONS: dict[str, DeviceFunction] = {
    **{name: DEVICE_FUNCTIONS[name] for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName")},
    "nvmlDeviceGetMemoryInfo_v2": DEVICE_FUNCTIONS["nvmlDeviceGetMemoryInfo_v2"],
    "nvmlDeviceGetGpuInstanceId": number(lambda instance, _t: instance.gpu_instance_id),
    "nvmlDeviceGetComputeInstanceId": number(lambda instance, _t: instance.compute_instance_id),
    "nvmlDeviceGetAttributes_v2": structure(
        lambda instance, _t: {
            "multiprocessorCount": instance.sm_count,
            "gpuInstanceSliceCount": instance.slices,
            "computeInstanceSliceCount": instance.slices,
            "memorySizeMB": instance.memory_total >> 20,
        }
    ),
}
