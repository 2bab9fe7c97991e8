"""The functions of the library that read one GPU or MIG device. Each returns an NVML return code."""
# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)

from __future__ import annotations

from typing import Any

from gpugauge.driver.nvidia.caller import CLOCKS_EVENT_REASONS, EVENT_TYPES
from gpugauge.simulator.device.device import Device
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
    plain,
    structure,
    text,
)

_BAR1_BYTES = 64 << 30
_SAMPLING_MICROSECONDS = 166_667
_THRESHOLDS = (95, 92, 95, 87)  # shutdown, slowdown, memory, GPU
_EVENTS = sum(EVENT_TYPES[kind] for kind in ("xid", "ecc_double_bit", "ecc_single_bit"))


def _memory(device: Device | Instance, t: float) -> dict[str, Any]:
    used = device.memory_used(t)
    free = device.memory_total - device.memory_reserved - used
    return {"total": device.memory_total, "reserved": device.memory_reserved, "used": used, "free": free}


def _memory_v1(device: Device, t: float) -> dict[str, Any]:
    """Return the older structure, in which reserved bytes count as used."""
    used = device.memory_used(t) + device.memory_reserved
    return {"total": device.memory_total, "used": used, "free": device.memory_total - used}


def _bar1(device: Device, t: float) -> dict[str, Any]:
    used = 3 << 20 if device.occupied(t) else 1 << 20
    return {"bar1Total": _BAR1_BYTES, "bar1Used": used, "bar1Free": _BAR1_BYTES - used}


def _engine(name: str) -> DeviceFunction:
    return numbers(lambda device, t: (device.utilization(t, name), _SAMPLING_MICROSECONDS))


def _temperature_v(device: Device, t: float, out: Any) -> int:
    if out._obj.sensorType != 0:
        return INVALID_ARGUMENT
    out._obj.temperature = device.temperature(t)
    return SUCCESS


def _fan(device: Device, t: float, fan: int) -> int | None:
    """Return percent of the maximum speed, which rises with the temperature from 60 degrees on."""
    return max(30, min(100, 30 + 3 * (device.temperature(t) - 60))) if fan < device.figures["fans"] else None


def _fan_rpm(device: Device, t: float, out: Any) -> int:
    percent = _fan(device, t, out._obj.fan)
    if percent is None:
        return INVALID_ARGUMENT
    out._obj.speed = 31 * percent
    return SUCCESS


def _processes(kind: str) -> DeviceFunction:
    """Return a function that lists processes; without an array, or with one too small, it writes their number only."""

    def function(device: Device, t: float, count: Any, array: Any) -> int:
        running = device.running(kind, t)
        capacity = 0 if array is None else count._obj.value
        count._obj.value = len(running)
        if len(running) > capacity:
            return INSUFFICIENT_SIZE
        for entry, process in zip(array or (), running, strict=False):
            entry.pid = process.pid
            entry.usedGpuMemory = NOT_AVAILABLE_64 if process.memory is None else process.memory
            entry.gpuInstanceId = entry.computeInstanceId = NOT_AVAILABLE_32
            if device.instances and process.instance is not None:
                entry.gpuInstanceId = device.instances[process.instance].gpu_instance_id
                entry.computeInstanceId = device.instances[process.instance].compute_instance_id
        return SUCCESS

    return function


def _cpu_affinity(device: Device, _t: float, size: Any, array: Any) -> int:
    """Four GPUs share a processor with 32 CPUs."""
    mask = (2**32 - 1) << 32 * (device.index // 4)
    for place in range(plain(size)):
        array._obj[place] = mask >> 64 * place & (2**64 - 1)
    return SUCCESS


def _reasons(device: Device, t: float) -> int:
    return sum(CLOCKS_EVENT_REASONS[reason] for reason in device.clocks_event_reasons(t))


_REASONS_SUPPORTED = sum(CLOCKS_EVENT_REASONS.values())

DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {
    "nvmlDeviceGetUUID": text(lambda device: device.uuid),
    "nvmlDeviceGetName": text(lambda device: device.name),
    "nvmlDeviceGetSerial": text(lambda device: device.serial),
    "nvmlDeviceGetBoardPartNumber": text(lambda device: device.figures["part_number"]),
    "nvmlDeviceGetVbiosVersion": text(lambda device: device.figures["vbios"]),
    "nvmlDeviceGetPciInfo_v3": structure(lambda device, _t: {"busId": device.bus_id.encode()}),
    "nvmlDeviceGetMinorNumber": number(lambda device, _t: device.index),
    "nvmlDeviceGetArchitecture": number(lambda device, _t: device.figures["architecture"]),
    "nvmlDeviceGetCudaComputeCapability": numbers(lambda device, _t: device.figures["compute_capability"]),
    "nvmlDeviceGetNumGpuCores": number(lambda device, _t: device.figures["cores"]),
    "nvmlDeviceGetCpuAffinity": _cpu_affinity,
    "nvmlDeviceGetNumaNodeId": number(lambda device, _t: device.index // 4),
    "nvmlDeviceGetUtilizationRates": structure(
        lambda device, t: {engine: device.utilization(t, engine) for engine in ("gpu", "memory")}
    ),
    "nvmlDeviceGetEncoderUtilization": _engine("encoder"),
    "nvmlDeviceGetDecoderUtilization": _engine("decoder"),
    "nvmlDeviceGetJpgUtilization": _engine("jpeg"),
    "nvmlDeviceGetOfaUtilization": _engine("ofa"),
    "nvmlDeviceGetEncoderStats": numbers(lambda device, t: (int(device.utilization(t, "encoder") > 0), 0, 0)),
    "nvmlDeviceGetMemoryInfo_v2": structure(_memory),
    "nvmlDeviceGetMemoryInfo": structure(_memory_v1),
    "nvmlDeviceGetBAR1MemoryInfo": structure(_bar1),
    "nvmlDeviceGetPowerUsage": number(lambda device, t: device.power(t)),
    "nvmlDeviceGetEnforcedPowerLimit": number(lambda device, _t: round(device.power_limit_watts * 1000)),
    "nvmlDeviceGetPowerManagementDefaultLimit": number(lambda device, _t: round(device.default_limit_watts * 1000)),
    "nvmlDeviceGetPowerManagementLimitConstraints": numbers(
        lambda device, _t: (round(device.default_limit_watts * 250), round(device.default_limit_watts * 1000))
    ),
    "nvmlDeviceGetTotalEnergyConsumption": number(lambda device, t: device.energy(t)),
    "nvmlDeviceGetTemperatureV": _temperature_v,
    "nvmlDeviceGetTemperature": chosen(lambda device, t, sensor: device.temperature(t) if sensor == 0 else None),
    "nvmlDeviceGetTemperatureThreshold": chosen(
        lambda _device, _t, which: _THRESHOLDS[which] if which < len(_THRESHOLDS) else None
    ),
    "nvmlDeviceGetClockInfo": chosen(lambda device, t, domain: device.clock(domain, t)),
    "nvmlDeviceGetMaxClockInfo": chosen(
        lambda device, _t, domain: device.clocks[domain][0] if 0 <= domain < len(device.clocks) else None
    ),
    "nvmlDeviceGetPerformanceState": number(lambda device, t: device.performance_state(t)),
    "nvmlDeviceGetCurrentClocksEventReasons": number(_reasons),
    "nvmlDeviceGetCurrentClocksThrottleReasons": number(_reasons),
    "nvmlDeviceGetSupportedClocksEventReasons": number(lambda _device, _t: _REASONS_SUPPORTED),
    "nvmlDeviceGetSupportedClocksThrottleReasons": number(lambda _device, _t: _REASONS_SUPPORTED),
    "nvmlDeviceGetRowRemapperHistogram": structure(
        lambda device, t: (
            {"max": 640 - device.health.rows("remapped_rows", "uncorrectable", t), "high": 0}
            | {"partial": device.health.rows("remapped_rows", "uncorrectable", t), "low": 0, "none": 0}
        )
    ),
    "nvmlDeviceGetCurrPcieLinkGeneration": number(lambda device, t: device.pcie(t)[0]),
    "nvmlDeviceGetMaxPcieLinkGeneration": number(lambda device, _t: device.figures["pcie"][0]),
    "nvmlDeviceGetCurrPcieLinkWidth": number(lambda device, t: device.pcie(t)[1]),
    "nvmlDeviceGetMaxPcieLinkWidth": number(lambda device, _t: device.figures["pcie"][1]),
    "nvmlDeviceGetNvLinkState": chosen(lambda device, t, link: device.nvlink_up(link, t)),
    "nvmlDeviceGetNumFans": number(lambda device, _t: device.figures["fans"]),
    "nvmlDeviceGetFanSpeed_v2": chosen(_fan),
    "nvmlDeviceGetFanSpeedRPM": _fan_rpm,
    "nvmlDeviceGetComputeMode": number(lambda _device, _t: 0),
    "nvmlDeviceGetPersistenceMode": number(lambda _device, _t: 1),
    "nvmlDeviceGetDisplayActive": number(lambda device, t: int(bool(device.running("graphics", t)))),
    "nvmlDeviceGetAccountingMode": number(lambda _device, _t: 0),
    "nvmlDeviceGetMigMode": numbers(lambda device, _t: (int(device.instances is not None),) * 2),
    "nvmlDeviceGetMaxMigDeviceCount": number(lambda device, _t: 7 if device.figures["mig_slice_sms"] else 0),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _processes("mps"),
    "nvmlDeviceGetSupportedEventTypes": number(
        lambda device, _t: _EVENTS | (EVENT_TYPES["mig"] if device.figures["mig_slice_sms"] else 0)
    ),
    "nvmlGpmQueryDeviceSupport": structure(
        lambda device, _t: {"isSupportedDevice": int("gpm" not in device.figures["lacks"])}
    ),
}

# The functions that accept the handle of a MIG device.
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
