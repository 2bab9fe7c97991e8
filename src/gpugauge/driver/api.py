"""The typed boundary to the driver: readings, replies and the view. Raw values, whose names carry the driver's unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from sys import intern
from typing import Any, Literal, NamedTuple

from gpugauge.driver.codes import CODES, DRIVER_DOWN, NO_UUID, RELEASED, WORKER_ERROR, DriverError, DriverFacts, Group
from gpugauge.driver.vendors import VENDORS, Vendor

__all__ = ["CODES", "DEVICE_FIELDS", "DRIVER_DOWN", "NO_UUID", "RELEASED", "Device", "DeviceReading"]
__all__ += ["DriverError", "DriverFacts", "DriverView", "Group", "KernelXid", "MigReading", "ProcessReading", "Reply"]


class ProcessReading(NamedTuple):
    """A process on a GPU as the driver lists it; memory is None where the driver does not report it."""

    pid: int
    kind: Literal["compute", "graphics", "mps"]
    used_memory_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class MigReading(NamedTuple):
    """A MIG device of a GPU: a compute instance and its GPU instance."""

    uuid: str
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    profile: str | None = None  # 1g.10gb
    sm_count: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None
    dram_active_percent: float | None = None


@dataclass(frozen=True)
class DeviceReading:
    """The reading of one GPU in the driver's units, None for no value. What only metric rows read is not declared."""

    # static
    index: int = -1
    uuid: str = ""
    name: str | None = None
    pci_bus_id: str | None = None
    minor_number: int | None = None
    serial: str | None = None
    vbios_version: str | None = None
    architecture: int | None = None
    compute_capability: tuple[int, int] | None = None
    core_count: int | None = None
    multiprocessors: int | None = None
    numa_node: int | None = None
    board_part_number: str | None = None
    power_limit_default_milliwatts: int | None = None
    power_limit_min_milliwatts: int | None = None
    power_limit_max_milliwatts: int | None = None
    clock_graphics_max_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    clock_video_max_mhz: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    temperature_slowdown_celsius: int | None = None
    temperature_shutdown_celsius: int | None = None
    temperature_gpu_max_celsius: int | None = None
    temperature_memory_max_celsius: int | None = None
    clocks_event_reasons_supported: Sequence[str] | None = None
    gpm_supported: bool | None = None
    event_types: Sequence[str] | None = None  # that are registered, such as xid; empty while that fails
    # fast
    utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    # normal
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    energy_millijoules: int | None = None
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    clock_graphics_mhz: int | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clock_video_mhz: int | None = None
    performance_state: int | None = None
    power_instant_milliwatts: int | None = None
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None
    clocks_event_reasons: Sequence[str] | None = None  # that lower the clocks now
    clocks_event_nanoseconds: dict[str, int] | None = None  # by reason, since the driver was loaded
    encoder_utilization_percent: int | None = None
    decoder_utilization_percent: int | None = None
    jpeg_utilization_percent: int | None = None
    ofa_utilization_percent: int | None = None
    encoder_sessions: int | None = None
    # profiling: means between two GPM samples at least 0.9 s apart
    profiling_seconds: float | None = None  # between the two samples
    graphics_active_percent: float | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None
    dram_active_percent: float | None = None
    fp64_active_percent: float | None = None
    fp32_active_percent: float | None = None
    fp16_active_percent: float | None = None
    pcie_transmit_mib_per_second: float | None = None
    pcie_receive_mib_per_second: float | None = None
    nvlink_transmit_mib_per_second: float | None = None
    nvlink_receive_mib_per_second: float | None = None
    # slow
    ecc_mode: bool | None = None
    ecc_mode_pending: bool | None = None
    ecc_errors: dict[str, int] | None = None  # by "corrected_volatile", "uncorrected_aggregate" …
    remapped_rows: dict[str, int] | None = None  # by correctable, uncorrectable
    remapped_rows_pending: bool | None = None
    remapped_rows_failure: bool | None = None
    row_remapper_banks: dict[str, int] | None = None  # by spare rows left: max, high, partial, low, none
    retired_pages: dict[str, int] | None = None  # by single_bit, double_bit
    retired_pages_pending: bool | None = None
    recovery_action: str | None = None  # of RECOVERY_ACTIONS, or another name
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    pcie_errors: dict[str, int] | None = None  # by kind
    nvlink_active: dict[str, bool] | None = None  # by link
    nvlink_speed_megabytes_per_second: dict[str, int] | None = None  # by link; decimal: 26562 is 26.562 GB/s
    nvlink_errors: dict[str, int] | None = None  # by kind, all links
    nvlink_link_errors: dict[str, dict[str, int]] | None = None  # by link and kind, of links with errors
    nvlink_ends: dict[str, str] | None = None  # of these links, where known: switch, npu, or a PCI address
    nvlink_transmitted_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    xgmi_transmitted_bytes: int | None = None
    xgmi_received_bytes: int | None = None
    fan_speed_percent: dict[str, int] | None = None  # by fan, of the maximum; may exceed 100
    fan_rpm: dict[str, int] | None = None  # by fan
    compute_mode: str | None = None  # of COMPUTE_MODES
    persistence_mode: bool | None = None
    mig_mode: bool | None = None
    mig_mode_pending: bool | None = None
    display_active: bool | None = None
    accounting_mode: bool | None = None
    # processes
    processes: tuple[ProcessReading, ...] | None = None
    # mig
    mig_instances: tuple[MigReading, ...] | None = None

    @classmethod
    def of(cls, groups: Iterable[Mapping[str, Any]]) -> DeviceReading:
        """Return the reading of these values by field; absent ones keep the class default, ten times as fast."""
        made = object.__new__(cls)
        for values in groups:
            made.__dict__.update(values)
        return made

    def value(self, field: str) -> Any:
        """Return a field that this class does not declare; None where the driver reported no value."""
        return self.__dict__.get(field)


class KernelXid(NamedTuple):
    """An error in the kernel log at a time since boot; `xid` is None for a load of the driver, `over` ends it."""

    address: str
    xid: int | None
    seconds: float = 0.0
    over: bool = False
    nonfatal: bool = False


SUSPENDED = "suspended"  # the reason of a GPU that the kernel has suspended: a reading would wake it
# The reasons for which a GPU is down, besides the codes of its driver: a closed list.
_NUMBERED = re.compile(r"code_\d{1,3}")  # of a driver that is newer than CODES
DOWN_REASONS = ("hangs", "crashes_worker", "not_enumerated", "removed", DRIVER_DOWN, NO_UUID, "stale", SUSPENDED)


def down_reason(reason: str) -> str:
    """Return the reason of a device that is down, `unknown` for one neither in CODES nor the number of a code."""
    return reason if reason in DOWN_REASONS or reason in CODES or _NUMBERED.fullmatch(reason) else "unknown"


DEVICE_FIELDS = frozenset(f.name for f in fields(DeviceReading))


def typed(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a group with the types of DeviceReading: once per reply, not once per view."""
    # The names of attributes are interned: lookups compare them by identity.
    known = {intern(key): value for key, value in values.items()}
    if known.get("compute_capability"):
        known["compute_capability"] = tuple(known["compute_capability"])
    if known.get("processes") is not None:
        known["processes"] = tuple(ProcessReading(**p) for p in known["processes"])
    if known.get("mig_instances") is not None:
        known["mig_instances"] = tuple(MigReading(**m) for m in known["mig_instances"])
    return known


@dataclass(slots=True)
class Reply:
    """The reply of the worker to one request. `values` has JSON values by group and field, `errors` the codes of the
    fields that failed. When the whole request failed, `failed` is the code and `failed_call` the function.
    """

    id: int
    op: str
    index: int | None = None
    values: dict[str, dict[str, Any]] = field(default_factory=dict)  # by group
    errors: dict[str, str] = field(default_factory=dict)
    failed: str | None = None
    failed_call: str = ""
    # By function: number of calls, seconds, longest seconds. For GPUs read together the last reply has them.
    calls: dict[str, list[float]] = field(default_factory=dict)
    spent: tuple[float, int] = (0.0, 0)  # seconds that the calls about the GPU took, and their number
    # Ring samples since the last request, by engine (ENGINES): (microseconds, percent); empty when the ring has nothing
    # new. A missing engine has no ring. Key "process": [microseconds, pid, sm %, memory %, encoder %, decoder %].
    samples: dict[str, list[Any]] = field(default_factory=dict)
    # {"type": "xid", "uuid": …, "xid": 79}, {"type": "mig"}: without "uuid" of the GPU of the reply, "" if unnamed.
    events: list[dict[str, Any]] = field(default_factory=list)
    received: float = 0.0  # time of the reading: monotonic seconds, the same clock in all processes
    # Set by the daemon: the GPU at the worker's index, and the ordinal of the worker process.
    uuid: str = ""
    worker: int = 0

    @property
    def failed_field(self) -> dict[str, Any]:
        """The field of a log line with the failed call, or with the exception of the worker itself."""
        return {"error" if self.failed == WORKER_ERROR else "call": self.failed_call}


class Failure(NamedTuple):
    """A part of a GPU that cannot be read, the name of the most frequent code, and the Unix time of the begin."""

    reading: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A GPU of the machine. While it is down, `reading` has its identity, as far as it is known. Until it is read, its
    `uuid` is made of its PCI bus id or index. `generations` counts the readings of each group, to detect new ones.
    """

    uuid: str
    up: bool
    reason: str
    reading: DeviceReading
    generations: dict[str, int]
    failures: tuple[Failure, ...] = ()  # of parts of its readings, while it is up
    vendor: Vendor = VENDORS[0]

    @property
    def trains(self) -> bool:
        """Whether it is up, and there are builds of torch for it."""
        return self.up and self.reading.value("gfx_target") not in self.vendor.unbuilt


@dataclass(frozen=True, slots=True, eq=False)
class DriverView:
    """The state of the driver at one instant. `reason` is "ok", or the reason for which the driver is down."""

    up: bool
    reason: str
    facts: DriverFacts | None = None
    devices: tuple[Device, ...] = ()
    worker_starts: int = 0
    worker_restarts: int = 0
    workers_unkillable: int = 0
    worker_pid: int | None = None
    worker_recycles: Mapping[str, int] = field(default_factory=dict)  # by reason (recycling.RECYCLES)
    simulated: bool = False
    released_until: float | None = None  # Unix seconds; None unless the driver is released
    lost_since: float | None = None  # monotonic seconds; None unless a driver that was up is down
    vendor: Vendor = VENDORS[0]
