"""MIG devices. They have their own uuids and metric families, so that no sum counts a GPU twice."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import Device, DeviceReading, MigReading
from gpugauge.metric import Metric, Table, by, families, flag, scaled
from gpugauge.snapshot import Section

_device = Table[DeviceReading]("uuid", devices="with MIG")
# The subject is (uuid of the parent GPU, reading of the instance).
_instance = Table[tuple[str, MigReading]]("uuid", devices="with MIG")
_memory = Table[tuple[str, MigReading]]("uuid", source="nvmlDeviceGetMemoryInfo_v2", devices="with MIG")
_profiled = Table[tuple[str, MigReading]]("uuid", devices="Hopper and newer, with MIG")
# Number of the GPM metric and help text, by the middle part of the metric name, which is also the field's name.
_SHARES = {
    "sm_active": (
        2,
        "Share of time, averaged over the MIG device's multiprocessors, in which at least one warp was resident.",
    ),
    "sm_occupancy": (3, "Resident warps of the MIG device as a share of the maximum."),
    "tensor_active": (5, "Share of cycles in which the tensor cores of the MIG device were active."),
    "dram_active": (10, "Share of the memory bandwidth of the MIG device in use."),
}


def _info(subject: tuple[str, MigReading]) -> dict[tuple[str, ...], int]:
    parent, m = subject
    ids = ("" if number is None else str(number) for number in (m.gpu_instance_id, m.compute_instance_id))
    return {(parent, m.profile or "", *ids): 1}


def _share(name: str) -> Callable[[tuple[str, MigReading]], float | None]:
    return lambda subject: scaled(getattr(subject[1], f"{name}_percent"), 0.01)


DEVICE: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_mig_mode",
        "1 if MIG is enabled now (current), or after the next reset (pending).",
        lambda d: by(current=flag(d.mig_mode), pending=flag(d.mig_mode_pending)),
        "when",
        source="nvmlDeviceGetMigMode",
    ),
)

INSTANCES: tuple[Metric, ...] = (
    INFO := _instance.gauge(
        "gpu_mig_info",
        "Identity of a MIG device: GPU (parent_uuid), profile, ids of its GPU instance and compute instance; always 1.",
        _info,
        *("parent_uuid", "profile", "gpu_instance", "compute_instance"),
        source="nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId, nvmlDeviceGetComputeInstanceId",
    ),
    _instance.gauge(
        "gpu_mig_multiprocessors",
        "Streaming multiprocessors of the MIG device.",
        lambda s: s[1].sm_count,
        source="nvmlDeviceGetAttributes_v2",
    ),
    _memory.gauge(
        "gpu_mig_memory_total_bytes", "Total device memory of the MIG device.", lambda s: s[1].memory_total_bytes
    ),
    _memory.gauge(
        "gpu_mig_memory_used_bytes", "Device memory allocated on the MIG device.", lambda s: s[1].memory_used_bytes
    ),
    _memory.gauge(
        "gpu_mig_memory_reserved_bytes",
        "Device memory of the MIG device reserved by the driver.",
        lambda s: s[1].memory_reserved_bytes,
    ),
    *(
        _profiled.gauge(f"gpu_mig_{name}_ratio", text, _share(name), source=f"nvmlGpmMigSampleGet, GPM metric {number}")
        for name, (number, text) in _SHARES.items()
    ),
)


class MigCollector(ReadingsCollector):
    """`gpu_mig_mode` by uuid of the GPU; all other rows by uuid of the MIG device."""

    name = "mig"
    metrics = DEVICE + INSTANCES
    groups = ("slow", "mig")

    def section(self, devices: tuple[Device, ...]) -> Section:
        """Return the mode of each GPU and the rows of all MIG devices."""
        up = [d for d in devices if d.up]
        instances = [((m.uuid,), (d.uuid, m)) for d in up for m in d.reading.mig_instances or ()]
        modes = [((d.uuid,), d.reading) for d in up]
        return Section(self.name, families(DEVICE, modes) + families(INSTANCES, instances))
