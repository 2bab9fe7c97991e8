"""Events of GPUs: Xid errors, from the driver's events and the kernel log, and changes of the MIG layout."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpugauge.collectors.base import Node, RegisteredCollector, Tick
from gpugauge.collectors.device.faults import FaultFile, Faults
from gpugauge.collectors.device.healthlog import HealthLog
from gpugauge.collectors.device.xids import XID_CLASSES, xid_class, xid_labels, xid_name
from gpugauge.collectors.kmsg import KernelLog, KernelXid, pci_address
from gpugauge.driver.api import XID_EVENT, Device
from gpugauge.metric import NONE, TIMESTAMP, Metric, Table, families
from gpugauge.snapshot import Section

log = logging.getLogger("gpugauge.events")

# All sources report an error within this time. Two reports by the same source are two errors.
_DUPLICATE_SECONDS = 10.0
# An event of a GPU that is not known yet is kept for this time: the GPU may be read for the first time.
_UNKNOWN_SECONDS = 10.0
_MAX_STRANGERS = 100
_MAX_PAST = 1000


@dataclass(slots=True)
class _State:
    """Events of one GPU since the daemon started, and from the kernel log the times of those before; `faults` are the
    times of the Xid errors that are not repaired.
    """

    classes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(XID_CLASSES, 0))
    last: dict[int, float] = field(default_factory=dict)
    faults: dict[int, float] = field(default_factory=dict)
    mig_changes: int = 0
    # Recent events: Xid code or None, the sources that have reported it, monotonic seconds.
    recent: list[tuple[int | None, set[str], float]] = field(default_factory=list)

    def count(self, xid: int | None, source: str, now: float, timestamp: float) -> bool:
        """Count an event unless another source has reported it already. Return whether it was counted."""
        self.recent = [known for known in self.recent if now - known[2] <= _DUPLICATE_SECONDS]
        for code, sources, _ in self.recent:
            if code == xid and source not in sources:
                sources.add(source)
                return False
        self.recent.append((xid, {source}, now))
        if xid is None:
            self.mig_changes += 1
            return True
        self.classes[xid_class(xid)] += 1
        self.last[xid] = timestamp
        return True


class _Event(NamedTuple):
    """An event of the GPU `uuid`; `xid` is None for a change of the MIG layout. `source` is nvml, kmsg, or for an event
    that the event set of another GPU reported, nvml with the uuid of that GPU.
    """

    uuid: str
    xid: int | None
    source: str
    seen: float  # monotonic seconds


_device = Table("uuid")
_exporter = Table()

DEVICE: tuple[Metric, ...] = (
    _device.counter(
        "gpu_xid_errors_total",
        "Xid errors, by the class of action that is recommended for them. Every class is exported from the start, "
        "with 0.",
        NONE,
        lambda c: c.classes,
        "class",
        source="nvmlEventSetWait_v2, /dev/kmsg",
    ),
    _device.gauge(
        "gpu_xid_last_timestamp_seconds",
        "Unix time of the last Xid error by code, with the class of action and the name in NVIDIA's catalogue. Errors "
        "from before the start of the exporter are those in the kernel log.",
        TIMESTAMP,
        lambda c: {xid_labels(xid): at for xid, at in c.last.items()},
        *("xid", "class", "xid_name"),
        source="nvmlEventSetWait_v2, /dev/kmsg",
    ),
    _device.gauge(
        "gpu_xid_unrepaired_timestamp_seconds",
        "Unix time of the last Xid error by code, until the fault is repaired: the GPU was reset, the driver was "
        "loaded again, the machine was rebooted, or the driver requires no recovery action any more. Only codes whose "
        "fault lasts.",
        TIMESTAMP,
        lambda c: {xid_labels(xid): at for xid, at in c.faults.items()},
        *("xid", "class", "xid_name"),
        source="nvmlEventSetWait_v2, /dev/kmsg, the state file",
    ),
    _device.counter(
        "gpu_mig_changes_total",
        "Changes of the GPU's MIG layout.",
        NONE,
        lambda c: c.mig_changes,
        source="nvmlEventSetWait_v2",
    ),
)
SOURCES: tuple[Metric, ...] = (
    _exporter.gauge(
        "gpugauge_event_source_up",
        "1 while Xid errors can be read from the source: nvml (driver events), kmsg (kernel log).",
        NONE,
        lambda sources: sources,
        "source",
    ),
)


class EventsCollector(RegisteredCollector):
    """Rows by uuid, of lost GPUs as well: their last Xid error is the reason. `kernel_log` is None where the log is not
    read, as with a simulated driver.
    """

    name = "events"
    metrics = DEVICE + SOURCES

    def __init__(self, kernel_log: KernelLog | None, faults: Faults | None = None) -> None:
        self._kernel_log = kernel_log
        self._kernel_error = ""
        self._faults = faults or Faults()
        self._states: dict[str, _State] = {}
        self._waiting: list[_Event] = []  # for their GPU to be known
        self._past: list[KernelXid] = []  # errors from before the start, which wait for their GPU to be known
        self._health_log = HealthLog(lambda uuid: self._states[uuid].last if uuid in self._states else {})
        self._strangers: set[str] = set()  # GPUs that are not exported, whose events were logged
        self._sources: dict[str, int] = {}
        self._section = Section(self.name, ())

    @classmethod
    def create(cls, node: Node) -> EventsCollector:
        """Return a collector that reads the node's kernel log, and keeps its file of faults."""
        return cls(node.kernel_log, Faults(FaultFile(node.fault_file, node.boot)))

    def collect(self, tick: Tick) -> Section:
        """Count the events since the last tick; the same section if there are none."""
        devices = tick.driver.devices
        new = [d.uuid for d in devices if d.uuid not in self._states]
        self._states.update((uuid, _State()) for uuid in new)
        events = [*self._waiting, *self._driver_events(tick), *self._kernel_events(tick)]
        self._waiting = []
        counted = [self._count(event, tick) for event in events]
        changed = bool(new) | any(counted) | self._recall(tick, new)
        self._faults.observe(devices, tick.timestamp)
        changed |= self._update_faults(devices)
        self._health_log.record(devices, tick.monotonic, tick.timestamp)
        sources = {"nvml": int(any(d.up and (d.reading.event_types or 0) & XID_EVENT for d in devices))}
        if self._kernel_log:
            sources["kmsg"] = int(self._kernel_log.up)
        if changed or sources != self._sources:
            self._sources = sources
            states = families(DEVICE, [((uuid,), state) for uuid, state in self._states.items()])
            self._section = Section(self.name, states + families(SOURCES, [((), sources)]))
        return self._section

    def _update_faults(self, devices: tuple[Device, ...]) -> bool:
        """Take over the errors that are not repaired, of the GPUs that are known. Return whether they have changed."""
        known = {device.uuid for device in devices}
        before = [state.faults for state in self._states.values()]
        for uuid, state in self._states.items():
            state.faults = self._faults.of(uuid) if uuid in known else {}
        return before != [state.faults for state in self._states.values()]

    def _recall(self, tick: Tick, new: list[str]) -> bool:
        """Take over the errors from before the start; `new` are GPUs that are now known. Return whether one had any."""
        found = self._kernel_log.past() if self._kernel_log else []
        if not found and not (new and self._past):
            return False
        addresses = _addresses(tick.driver.devices)
        waiting, recalled = [], False
        for event in (*self._past, *found):
            uuid = addresses.get(event.address, "")
            at = tick.timestamp - tick.monotonic + event.seconds
            if event.xid is None or event.over:
                self._end(event, uuid, at)
            if event.xid is not None and uuid:
                last = self._states[uuid].last
                last[event.xid] = max(last.get(event.xid, at), at)
                self._faults.record(uuid, event.xid, at)
                recalled = True
            elif event.xid is not None:
                waiting.append(event)
        self._past = waiting[-_MAX_PAST:]
        return recalled

    def _end(self, event: KernelXid, uuid: str, at: float) -> None:
        """Record that the faults of all GPUs, or of one, are over."""
        if event.xid is None:
            self._faults.driver_loaded(at)
        elif uuid:
            self._faults.over(uuid, at)

    def _count(self, event: _Event, tick: Tick) -> bool:
        """Count one event. Return whether it was counted."""
        state = self._states.get(event.uuid)
        if state is None:
            self._keep(event, tick.monotonic)
            return False
        if not state.count(event.xid, event.source, tick.monotonic, tick.timestamp):
            return False
        if event.xid is not None:
            self._faults.record(event.uuid, event.xid, tick.timestamp)
            named = ", ".join(filter(None, (xid_name(event.xid), xid_class(event.xid))))
            log.warning("Xid %d on %s (%s, from %s)", event.xid, event.uuid, named, event.source)
        return True

    def _keep(self, event: _Event, now: float) -> None:
        """Keep an event until its GPU is known; after a while, log that it is not counted, once for each GPU."""
        if event.uuid and now - event.seen < _UNKNOWN_SECONDS:
            self._waiting.append(event)
        elif event.uuid not in self._strangers and len(self._strangers) < _MAX_STRANGERS:
            self._strangers.add(event.uuid)
            kind = "MIG change" if event.xid is None else f"Xid {event.xid}"
            unknown = event.uuid or "a GPU that the driver does not name"
            log.warning("%s on %s (from %s) is not counted: the GPU is not exported", kind, unknown, event.source)

    def _driver_events(self, tick: Tick) -> Iterator[_Event]:
        for reply in tick.replies:
            for event in reply.events:
                uuid = event.get("uuid", reply.uuid)
                source = "nvml" if uuid == reply.uuid else f"nvml, event set of {reply.uuid or 'another GPU'}"
                if event.get("type") == "mig":
                    yield _Event(uuid, None, source, tick.monotonic)
                elif event.get("type") == "xid" and isinstance(event.get("xid"), int):
                    yield _Event(uuid, event["xid"], source, tick.monotonic)

    def _kernel_events(self, tick: Tick) -> Iterator[_Event]:
        if self._kernel_log is None:
            return
        found = self._kernel_log.read(tick.monotonic)
        if self._kernel_log.error != self._kernel_error:
            self._kernel_error = self._kernel_log.error
            if self._kernel_error:
                log.info("kernel log not readable, only Xid errors from the driver are counted: %s", self._kernel_error)
        addresses = _addresses(tick.driver.devices) if found else {}
        for event in found:
            # A GPU at another address may be one that the settings exclude, or that a virtual machine has.
            uuid = addresses.get(event.address, "")
            if event.xid is None or event.over:
                self._end(event, uuid, tick.timestamp)
            if event.xid is not None and uuid:
                yield _Event(uuid, event.xid, "kmsg", tick.monotonic)


def _addresses(devices: tuple[Device, ...]) -> dict[str, str]:
    """Return uuids by PCI address, of lost GPUs as well."""
    return {pci_address(d.reading.pci_bus_id): d.uuid for d in devices if d.reading.pci_bus_id}
