"""The typed values of one tick. Each collector sets its part; the part of one that fails or is disabled is empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpugauge.driver.api import RELEASED, Device, DeviceReading, DriverView
from gpugauge.node.judged import Judged, Memory
from gpugauge.sessions.session import Session
from gpugauge.workload.processfiles import HostProcess

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


@dataclass(slots=True, eq=False)
class Node:
    """One tick: Unix time and monotonic time in seconds, and the parts by their collectors. Nothing in a part changes
    after it was set. GPUs are by uuid, processes by their `process` label.
    """

    timestamp: float = 0.0
    monotonic: float = 0.0
    devices: tuple[Device, ...] = ()  # device
    loads: Mapping[str, Load] = field(default_factory=dict)  # utilization
    profiled: Mapping[str, Profiled] = field(default_factory=dict)  # profiling
    xids: Mapping[str, Xids] = field(default_factory=dict)  # events
    uses: Mapping[tuple[str, str], Use] = field(default_factory=dict)  # process, by (process, uuid)
    started: Mapping[str, float | None] = field(default_factory=dict)  # process: Unix time
    unaccounted: Mapping[str, float | None] = field(default_factory=dict)  # process: busy seconds by uuid
    hosts: Mapping[str, HostProcess] = field(default_factory=dict)  # host
    sessions: Mapping[str, Session] = field(default_factory=dict)  # training, also those that ended
    memory: Mapping[str, Memory] = field(default_factory=dict)  # memory
    judged: Mapping[str, Judged] = field(default_factory=dict)  # verdict

    driver: DriverView = UNKNOWN_DRIVER

    _held: dict[str, list[str]] | None = None

    def held(self, process: str) -> list[str]:
        """Return the GPUs on which a process has memory by the driver's lists."""
        if self._held is None:
            held: dict[str, list[str]] = {}
            for (holder, uuid), use in self.uses.items():
                if use.memory is not None:
                    held.setdefault(holder, []).append(uuid)
            self._held = held  # once it is complete: the server's thread reads it, too
        return self._held.get(process, [])

    @property
    def holders(self) -> frozenset[str]:
        """The processes with memory on a GPU by the driver's lists."""
        self.held("")
        return frozenset(self._held or ())

    def shown(self) -> Iterator[Device]:
        """Return the GPUs that are exported: all but those of a driver that is released."""
        return (device for device in self.devices if device.reason != RELEASED)

    def reading(self, uuid: str) -> DeviceReading:
        """Return the reading of a GPU, an empty one if it is down or not there."""
        return next((d.reading for d in self.devices if d.uuid == uuid and d.up), NO_READING)
