"""The typed values of one tick. Each collector sets its part; the part of one that fails or is disabled is empty."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpugauge.driver.api import RELEASED, Device, DeviceReading, DriverView
from gpugauge.sessions.session import Counters, Session
from gpugauge.verdict.memory.trend import Growth
from gpugauge.workload.identity import Workload
from gpugauge.workload.processfiles import HostProcess


class Verdict(NamedTuple):
    """`causes` are the shares of the held GPU time lost to each cause, `minor` is that of all causes that are too small
    to be among them. `limited_by` is the cause to remove first.
    """

    state: str
    confidence: Literal["inside", "outside"]
    causes: Mapping[str, float] = {}
    limited_by: str | None = None
    undecidable: frozenset[str] = frozenset()
    minor: float = 0.0

    @property
    def lost(self) -> float | None:
        """The share of the held GPU time that is lost, to all causes; None if nothing limits it."""
        return sum(self.causes.values()) if self.limited_by and self.causes else None


@dataclass(frozen=True, slots=True)
class Gain:
    """Factors of the step rate without a cause, 1 or more."""

    expected: float  #: the factor
    lower: float  #: its lower bound
    upper: float  #: its upper bound
    next: str  #: the cause that limits the step then, `gpu` for its kernels or `cpu` for its computation on the CPU


class Diagnosis(NamedTuple):
    """`reason` is one of verdict.loaders.REASONS. `workers` is the number that helps, the present one if more do not
    help, None if that is not known. `speedup` is the expected factor of the step rate with its lower bound, 1.0 if
    nothing changes.
    """

    reason: str
    workers: int | None = None
    speedup: float | None = None
    lower: float | None = None


class Judged(NamedTuple):
    """The verdict on a process: shares of a step by part and of the rest, gains by cause, diagnosis of its loader."""

    verdict: Verdict
    shares: Mapping[str, float] = {}
    gains: Mapping[str, Gain] = {}
    mfu: float | None = None
    loader: Diagnosis | None = None
    rest: Mapping[str, float] = {}
    known: Mapping[str, float] = {}  # the values of its evidence, as of Evidence.known()
    early: bool = False  # the evidence is not yet enough for a cause and for advice


class OnDevice(NamedTuple):
    """The memory of a process on a GPU: what is left of it, and its growth with each step; see DeviceMemory."""

    headroom: float | None = None
    fragmentation: float | None = None
    growth: Growth | None = None
    full_seconds: float | None = None


class Memory(NamedTuple):
    """The memory of a process: on its GPUs by uuid, beside the other ranks, and on the host by part."""

    devices: Mapping[str, OnDevice] = {}
    batch_ratio: float | None = None  # of the GPU with the least room
    rank_ratio: float | None = None
    full_seconds: float | None = None  # of its cgroup
    growth: Mapping[str, Growth] = {}  # of host memory, in each second


NO_READING = DeviceReading()
UNKNOWN_DRIVER = DriverView(False, "unknown")


class Load(NamedTuple):
    """Seconds in which the `gpu` engine of a GPU was busy, and was observed."""

    busy: float | None = None
    observed: float | None = None


class Profiled(NamedTuple):
    """Integrals of the performance counters of a GPU: seconds and bytes; None for what the GPU does not have."""

    seconds: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    sent: float | None = None
    received: float | None = None


class Xids(NamedTuple):
    """Unix times of the last Xid errors of a GPU by code, and of those that are not repaired."""

    last: Mapping[int, float]
    unrepaired: Mapping[int, float]


class Use(NamedTuple):
    """What a process uses of a GPU: bytes, and busy seconds so far."""

    memory: int | None
    busy: float | None


class Identity(NamedTuple):
    """A process on a GPU: its pid, how the driver lists it, its workload, and the Unix time of its start."""

    pid: int | None
    kind: str = ""
    workload: Workload = Workload()
    started: float | None = None


class Assignment(NamedTuple):
    """The workloads that a GPU or MIG device is assigned to; without one it is free, if the lists are `complete`."""

    workloads: tuple[Workload, ...]
    complete: bool

    @property
    def state(self) -> str | None:
        """The state of the device for the scheduler, None if no scheduler reports it."""
        if not self.workloads and not self.complete:
            return None
        owners = {(w.kind, w.namespace, w.pod, w.job_id) for w in self.workloads}
        return "unallocated" if not owners else "allocated" if len(owners) == 1 else "shared"


@dataclass(slots=True, eq=False)
class Node:
    """One tick: Unix and monotonic time, and the parts by collector, which never change. GPUs are by uuid."""

    timestamp: float = 0.0
    monotonic: float = 0.0
    devices: tuple[Device, ...] = ()  # device
    loads: Mapping[str, Load] = field(default_factory=dict)  # utilization
    utilization: Mapping[str, float] = field(default_factory=dict)  # utilization: share of the last seconds
    profiled: Mapping[str, Profiled] = field(default_factory=dict)  # profiling
    xids: Mapping[str, Xids] = field(default_factory=dict)  # events
    uses: Mapping[tuple[str, str], Use] = field(default_factory=dict)  # process, by (process, uuid)
    on_mig: Collection[tuple[str, str]] = ()  # process: (process, uuid of a MIG device)
    identities: Mapping[str, Identity] = field(default_factory=dict)  # process
    hidden: Mapping[str, int] = field(default_factory=dict)  # process: processes of a GPU without series
    unaccounted: Mapping[str, float | None] = field(default_factory=dict)  # process: busy seconds by uuid
    assignments: Mapping[str, Assignment] = field(default_factory=dict)  # allocation
    hosts: Mapping[str, HostProcess] = field(default_factory=dict)  # host
    sessions: Mapping[str, Session] = field(default_factory=dict)  # training, also those that ended
    hook: Counters | None = None  # training
    memory: Mapping[str, Memory] = field(default_factory=dict)  # memory
    judged: Mapping[str, Judged] = field(default_factory=dict)  # verdict
    build: tuple[str, bool] | None = None  # exporter: version, and whether the devices are simulated
    driver: DriverView = UNKNOWN_DRIVER

    _held: dict[str, list[str]] | None = None
    _by_uuid: tuple[tuple[Device, ...], dict[str, Device]] = ((), {})

    def _by_holder(self) -> dict[str, list[str]]:
        if self._held is None:
            held: dict[str, list[str]] = {}
            for (holder, uuid), use in self.uses.items():
                if use.memory is not None:
                    held.setdefault(holder, []).append(uuid)
            self._held = held  # once it is complete: the server's thread reads it, too
        return self._held

    def held(self, process: str) -> list[str]:
        """Return the GPUs on which a process has memory by the driver's lists."""
        return self._by_holder().get(process, [])

    @property
    def holders(self) -> frozenset[str]:
        """The processes with memory on a GPU by the driver's lists."""
        return frozenset(self._by_holder())

    def shown(self) -> Iterator[Device]:
        """Return the GPUs that are exported: all but those of a driver that is released."""
        return (device for device in self.devices if device.reason != RELEASED)

    def device(self, uuid: str) -> Device | None:
        """Return a GPU, None if it is not there."""
        devices, by_uuid = self._by_uuid
        if devices is not self.devices:
            by_uuid = {device.uuid: device for device in self.devices}
            self._by_uuid = self.devices, by_uuid
        return by_uuid.get(uuid)

    def shows(self, uuid: str) -> bool:
        """Return whether a GPU is one of those of `shown`."""
        device = self.device(uuid)
        return device is not None and device.reason != RELEASED

    def reading(self, uuid: str) -> DeviceReading:
        """Return the reading of a GPU, an empty one if it is down or not there."""
        device = self.device(uuid)
        return device.reading if device and device.up else NO_READING
