"""A GPU's identity, memory, power, temperature, fans and modes."""

from __future__ import annotations

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import DOWN_REASONS, RELEASED, SUSPENDED, Device, DeviceReading, down_reason
from gpugauge.driver.codes import COMPUTE_MODES
from gpugauge.driver.failing import PARTS
from gpugauge.metric import Metric, Table, by, each, families, flag, scaled, states
from gpugauge.snapshot import Section

_device = Table[Device]("uuid")
_reading = Table[DeviceReading]("uuid")
_memory = Table[DeviceReading]("uuid", source="nvmlDeviceGetMemoryInfo_v2")
_bar1 = Table[DeviceReading]("uuid", source="nvmlDeviceGetBAR1MemoryInfo")
_constraint = Table[DeviceReading]("uuid", source="nvmlDeviceGetPowerManagementLimitConstraints")
_amd = Table[DeviceReading]("uuid", devices="of AMD")
_fan = Table[DeviceReading]("uuid", "fan", devices="with fans of their own")


def _info(d: DeviceReading) -> dict[tuple[str, ...], float]:
    capability = ".".join(map(str, d.compute_capability)) if d.compute_capability else ""
    text = (d.name or "", d.pci_bus_id or "", capability, d.vbios_version or "", d.serial or "")
    minor, multiprocessors = ("" if n is None else str(n) for n in (d.minor_number, d.multiprocessors))
    return {("" if d.index < 0 else str(d.index), minor, *text, multiprocessors): 1}


def _partition(d: DeviceReading) -> dict[tuple[str, ...], int] | None:
    compute, memory = d.value("compute_partition"), d.value("memory_partition")
    return {(compute or "", memory or ""): 1} if compute or memory else None


# Exported for every GPU of the machine, also while it is down.
IDENTITY: tuple[Metric, ...] = (
    UP := _device.gauge(
        "gpu_up",
        "1 while the GPU responds, 0 while it is lost, hangs or is removed, also before the exporter started; absent "
        "while the driver is released or the GPU suspended. Until the uuid is known, the label has the PCI bus id or "
        "the index.",
        lambda d: None if d.reason in {RELEASED, SUSPENDED} else int(d.up),
        source="nvmlDeviceGetHandleByIndex, /sys/bus/pci, the state file",
    ),
    DOWN_REASON := _device.gauge(
        "gpu_down_reason",
        f"1 with the reason for which the GPU is down: {', '.join(DOWN_REASONS)}, or the name of a return code of NVML "
        "such as gpu_is_lost. Absent while it is up.",
        lambda d: None if d.up or d.reason == RELEASED else {down_reason(d.reason): 1},
        "reason",
    ),
    INFO := _device.gauge(
        "gpu_info",
        "Identity of the GPU; always 1. The index can change when another GPU is lost, the uuid cannot; a lost "
        "GPU whose index another one has now has none.",
        lambda d: _info(d.reading),
        *("index", "minor_number", "name", "pci_bus_id", "compute_capability", "vbios_version", "serial"),
        "multiprocessors",
        source="nvmlDeviceGetName, nvmlDeviceGetPciInfo, nvmlDeviceGetMinorNumber, nvmlDeviceGetCudaComputeCapability, "
        "nvmlDeviceGetNumGpuCores",
    ),
    _device.gauge(
        "gpu_reading_failed",
        f"1 with the name of the return code for each part of the GPU that cannot be read: {', '.join(sorted(PARTS))}. "
        "The series that need it are absent. Absent while all is well, and for parts that the GPU does not have.",
        lambda d: {(failure.reading, failure.reason): 1 for failure in d.failures},
        *("reading", "reason"),
    ),
    _device.gauge(
        "gpu_reading_failed_since_timestamp_seconds",
        "Unix time since which a part of the GPU cannot be read.",
        lambda d: {failure.reading: failure.since for failure in d.failures},
        "reading",
    ),
)

READINGS: tuple[Metric, ...] = (
    MEMORY_TOTAL := _memory.gauge(
        "gpu_memory_total_bytes", "Total device memory of the GPU.", lambda d: d.memory_total_bytes
    ),
    MEMORY_USED := _memory.gauge(
        "gpu_memory_used_bytes", "Device memory allocated by all processes.", lambda d: d.memory_used_bytes
    ),
    _memory.gauge("gpu_memory_free_bytes", "Device memory that is not allocated.", lambda d: d.memory_free_bytes),
    _memory.gauge(
        "gpu_memory_reserved_bytes",
        "Device memory reserved by the driver and the firmware.",
        lambda d: d.memory_reserved_bytes,
        devices="driver 510 and newer",
    ),
    _bar1.gauge(
        "gpu_bar1_total_bytes",
        "Size of the BAR1 window, through which the host and other devices map device memory.",
        lambda d: d.bar1_total_bytes,
    ),
    _bar1.gauge("gpu_bar1_used_bytes", "Mapped part of the BAR1 window.", lambda d: d.bar1_used_bytes),
    POWER := _reading.gauge(
        "gpu_power_watts",
        "Board power draw as reported by the driver: a mean over one second on Ampere and newer, except GA100.",
        lambda d: scaled(d.power_milliwatts, 1e-3),
        source="nvmlDeviceGetPowerUsage",
    ),
    _reading.gauge(
        "gpu_power_instant_watts",
        "Board power draw at the moment of the reading.",
        lambda d: scaled(d.power_instant_milliwatts, 1e-3),
        source="field 186",
        devices="Ampere and newer",
    ),
    POWER_LIMIT := _reading.gauge(
        "gpu_power_limit_watts",
        "Power limit in force.",
        lambda d: scaled(d.power_limit_milliwatts, 1e-3),
        source="nvmlDeviceGetEnforcedPowerLimit",
    ),
    _reading.gauge(
        "gpu_power_limit_default_watts",
        "Default power limit.",
        lambda d: scaled(d.power_limit_default_milliwatts, 1e-3),
        source="nvmlDeviceGetPowerManagementDefaultLimit",
    ),
    _constraint.gauge(
        "gpu_power_limit_min_watts",
        "Lowest power limit that can be set.",
        lambda d: scaled(d.power_limit_min_milliwatts, 1e-3),
    ),
    _constraint.gauge(
        "gpu_power_limit_max_watts",
        "Highest power limit that can be set.",
        lambda d: scaled(d.power_limit_max_milliwatts, 1e-3),
    ),
    ENERGY := _reading.counter(
        "gpu_energy_joules_total",
        "Energy consumed since the driver was loaded.",
        lambda d: scaled(d.energy_millijoules, 1e-3),
        source="nvmlDeviceGetTotalEnergyConsumption",
        devices="Volta and newer",
    ),
    TEMPERATURE := _reading.gauge(
        "gpu_temperature_celsius",
        "Temperature by sensor.",
        lambda d: by(gpu=d.temperature_celsius, memory=d.memory_temperature_celsius),
        "sensor",
        source="nvmlDeviceGetTemperatureV, field 82",
        devices="memory: GPUs with HBM",
    ),
    _reading.gauge(
        "gpu_temperature_limit_celsius",
        "Temperature limit: slowdown, shutdown, or maximum operating temperature (gpu_max, memory_max).",
        lambda d: by(
            slowdown=d.temperature_slowdown_celsius,
            shutdown=d.temperature_shutdown_celsius,
            gpu_max=d.temperature_gpu_max_celsius,
            memory_max=d.temperature_memory_max_celsius,
        ),
        "limit",
        source="nvmlDeviceGetTemperatureThreshold",
    ),
    _fan.gauge(
        "gpu_fan_speed_ratio",
        "Intended fan speed as a share of the maximum; can exceed 1.",
        lambda d: each(d.fan_speed_percent, lambda percent: percent / 100),
        source="nvmlDeviceGetFanSpeed_v2",
    ),
    _fan.gauge(
        "gpu_fan_rpm",
        "Measured fan speed in rotations per minute.",
        lambda d: d.fan_rpm,
        source="nvmlDeviceGetFanSpeedRPM",
    ),
    _reading.gauge(
        "gpu_performance_state",
        "Performance state, from 0 (P0, highest performance) to 15.",
        lambda d: d.performance_state,
        source="nvmlDeviceGetPerformanceState",
    ),
    _reading.gauge(
        "gpu_encoder_sessions",
        "Open video encoder sessions.",
        lambda d: d.encoder_sessions,
        source="nvmlDeviceGetEncoderStats",
    ),
    _reading.gauge(
        "gpu_compute_mode",
        "Compute mode: 1 for the mode in force, 0 for the others.",
        lambda d: states(COMPUTE_MODES, d.compute_mode),
        "mode",
        source="nvmlDeviceGetComputeMode",
    ),
    _reading.gauge(
        "gpu_persistence_mode",
        "1 if the driver stays loaded while no process uses the GPU.",
        lambda d: flag(d.persistence_mode),
        source="nvmlDeviceGetPersistenceMode",
    ),
    _reading.gauge(
        "gpu_accounting_mode",
        "1 if the driver keeps statistics of ended processes.",
        lambda d: flag(d.accounting_mode),
        source="nvmlDeviceGetAccountingMode",
    ),
    _reading.gauge(
        "gpu_display_active",
        "1 if the GPU drives a display.",
        lambda d: flag(d.display_active),
        source="nvmlDeviceGetDisplayActive",
    ),
    _reading.gauge(
        "gpu_cuda_cores", "CUDA cores of the GPU.", lambda d: d.core_count, source="nvmlDeviceGetNumGpuCores"
    ),
    _reading.gauge(
        "gpu_local_cpus_info",
        "CPUs of the host that are near the GPU, as a list such as 0-31,64-95; always 1.",
        lambda d: {cpus: 1} if (cpus := d.value("local_cpus")) else None,
        "cpus",
        source="nvmlDeviceGetCpuAffinity",
    ),
    _reading.gauge(
        "gpu_numa_node",
        "NUMA node of the host that the GPU is attached to.",
        lambda d: d.numa_node,
        source="nvmlDeviceGetNumaNodeId",
    ),
    _amd.gauge(
        "gpu_gfx_target_info",
        "Architecture of the GPU, as builds for ROCm name it, such as gfx942; always 1.",
        lambda d: {target: 1} if (target := d.value("gfx_target")) else None,
        "target",
        source="/sys/class/kfd",
    ),
    _amd.gauge(
        "gpu_partition_info",
        "Partitioning of a GPU: of its compute units, such as SPX, and of its memory, such as NPS1; always 1.",
        _partition,
        *("compute", "memory"),
        source="current_compute_partition, current_memory_partition",
    ),
)


class DeviceCollector(ReadingsCollector):
    """Rows by uuid. A GPU that is down keeps `gpu_up` 0 and `gpu_info`; its other series are absent."""

    name = "device"
    metrics = IDENTITY + READINGS
    groups = ("static", "normal", "slow")

    def collect(self, tick: Tick) -> Section:
        """Set the devices of the node; return their rows, see `ReadingsCollector.collect`."""
        section = super().collect(tick)
        tick.node.devices = tick.driver.devices
        return section

    def section(self, devices: tuple[Device, ...]) -> Section:
        """Return the identity of every GPU and the readings of those that are up."""
        identity = families(IDENTITY, [((d.uuid,), d) for d in devices])
        return Section(self.name, identity + families(READINGS, [((d.uuid,), d.reading) for d in devices if d.up]))
