"""A card's identity, memory, power, temperature and clocks."""

from __future__ import annotations

from gpugauge.collectors.base import Tick
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.metric import BYTES, CELSIUS, HERTZ, JOULES, NONE, WATTS, Metric, Table, families, scaled
from gpugauge.snapshot import Section

_device = Table("uuid")
_MHZ = 1_000_000


def _info(d: DeviceReading) -> dict[tuple[str, ...], float]:
    capability = ".".join(map(str, d.compute_capability)) if d.compute_capability else ""
    text = (d.name or "", d.pci_bus_id or "", capability, d.vbios_version or "", d.serial or "")
    minor = "" if d.minor_number is None else str(d.minor_number)
    return {(str(d.index), minor, *text): 1}


def _by(**readings: float | None) -> dict[str, float]:
    return {name: value for name, value in readings.items() if value is not None}


# Read from every card ever seen, also while it is down.
IDENTITY: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_up",
        "1 while the card answers, 0 while it is lost, hanging or gone.",
        NONE,
        lambda d: int(d.up),
    ),
    _device.gauge(
        "gpu_info",
        "Identity of the card; always 1. An index shifts when another card is lost, the uuid does not.",
        NONE,
        lambda d: _info(d.reading),
        *("index", "minor_number", "name", "pci_bus_id", "compute_capability", "vbios_version", "serial"),
        source="nvmlDeviceGetName, nvmlDeviceGetPciInfo, nvmlDeviceGetMinorNumber, nvmlDeviceGetCudaComputeCapability",
    ),
)

READINGS: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_memory_total_bytes",
        "Device memory of the card.",
        BYTES,
        lambda d: d.memory_total_bytes,
        source="nvmlDeviceGetMemoryInfo_v2",
    ),
    _device.gauge(
        "gpu_memory_used_bytes",
        "Device memory allocated by all processes.",
        BYTES,
        lambda d: d.memory_used_bytes,
        source="nvmlDeviceGetMemoryInfo_v2",
    ),
    _device.gauge(
        "gpu_memory_reserved_bytes",
        "Device memory that the driver and firmware keep for themselves.",
        BYTES,
        lambda d: d.memory_reserved_bytes,
        source="nvmlDeviceGetMemoryInfo_v2",
    ),
    _device.gauge(
        "gpu_power_watts",
        "Board power draw, as the driver reports it.",
        WATTS,
        lambda d: scaled(d.power_milliwatts, 1e-3),
        source="nvmlDeviceGetPowerUsage",
    ),
    _device.gauge(
        "gpu_power_limit_watts",
        "Power limit in force for the board.",
        WATTS,
        lambda d: scaled(d.power_limit_milliwatts, 1e-3),
        source="nvmlDeviceGetEnforcedPowerLimit",
    ),
    _device.counter(
        "gpu_energy_joules_total",
        "Energy that the board drew since the driver was loaded.",
        JOULES,
        lambda d: scaled(d.energy_millijoules, 1e-3),
        source="nvmlDeviceGetTotalEnergyConsumption",
    ),
    _device.gauge(
        "gpu_temperature_celsius",
        "Temperature by sensor.",
        CELSIUS,
        lambda d: _by(gpu=d.temperature_celsius, memory=d.memory_temperature_celsius),
        "sensor",
        source="nvmlDeviceGetTemperatureV, field 82",
    ),
    _device.gauge(
        "gpu_clock_hertz",
        "Current clock by domain.",
        HERTZ,
        lambda d: _by(
            graphics=scaled(d.clock_graphics_mhz, _MHZ),
            sm=scaled(d.clock_sm_mhz, _MHZ),
            memory=scaled(d.clock_memory_mhz, _MHZ),
            video=scaled(d.clock_video_mhz, _MHZ),
        ),
        "domain",
        source="nvmlDeviceGetClockInfo",
    ),
    _device.gauge(
        "gpu_performance_state",
        "Performance state, 0 (P0, highest) to 15.",
        NONE,
        lambda d: d.performance_state,
        source="nvmlDeviceGetPerformanceState",
    ),
)


class DeviceCollector:
    """Rows by uuid. A card that is down keeps gpu_up 0 and its identity, and loses everything else."""

    name = "device"
    metrics = IDENTITY + READINGS

    def __init__(self) -> None:
        self._seen: tuple[tuple[str, bool, int, int], ...] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return the cards' identities and readings, the same section until a card has a new normal reading."""
        devices = tick.driver.devices
        seen = tuple(map(_state, devices))
        if seen != self._seen:
            identity = families(IDENTITY, [((d.uuid,), d) for d in devices])
            readings = families(READINGS, [((d.uuid,), d.reading) for d in devices if d.up])
            self._section, self._seen = Section(self.name, identity + readings), seen
        return self._section


def _state(d: Device) -> tuple[str, bool, int, int]:
    return d.uuid, d.up, d.generations.get("static", 0), d.generations.get("normal", 0)
