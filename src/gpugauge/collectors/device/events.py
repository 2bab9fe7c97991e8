"""Events of GPUs: Xid errors, from the driver's events and the kernel log, and changes of the MIG layout."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.collectors.device.faults import Faults
from gpugauge.collectors.device.gpufaults import FaultFile
from gpugauge.collectors.device.kernelxids import KernelXids, Placed
from gpugauge.collectors.kmsg import KernelLog
from gpugauge.driver.api import Device
from gpugauge.driver.bus import pci_address
from gpugauge.driver.vendors.vendor import Vendor
from gpugauge.metric import Metric, Table, families
from gpugauge.node.node import Xids
from gpugauge.snapshot import Section

log = logging.getLogger("gpugauge.events")

# All sources report an error within this time. Two reports by the same source are two errors.
_DUPLICATE_SECONDS = 10.0
# An event of a GPU that is not known yet is kept for this time: the GPU may be read for the first time.
_UNKNOWN_SECONDS = 10.0
_MAX_STRANGERS = 100
# The last errors of a GPU that is replaced or forgotten are scraped for so long.
_GONE_SECONDS = 3600.0
# Names of GPUs whose uuid is not known (driver/bus.py).
_UNNAMED = ("PCI-", "INDEX-")


@dataclass(slots=True)
class _State:
    """Events of one GPU; `last` also from the kernel log before the start. `faults` are the errors not repaired."""

    vendor: Vendor
    classes: dict[str, int]
    last: dict[int, float] = field(default_factory=dict)
    faults: dict[int, float] = field(default_factory=dict)
    mig_changes: int | None = None  # None for a GPU that cannot be divided, or whose changes nothing reports
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
            self.mig_changes = (self.mig_changes or 0) + 1
            return True
        self.classes[self.vendor.error_labels(xid)[1]] += 1
        self.last[xid] = timestamp
        return True


class _Event(NamedTuple):
    """An event of the GPU `uuid`; `xid` is None for a change of the MIG layout. `source` is that of the
    vendor, kmsg, or for an event that the event set of another GPU reported, that with the uuid of the other one.
    """

    uuid: str
    xid: int | None
    source: str
    seen: float  # monotonic seconds


_device = Table["_State"]("uuid", source="nvmlEventSetWait_v2, /dev/kmsg")
_exporter = Table[dict[str, int]]()

DEVICE: tuple[Metric, ...] = (
    ERRORS := _device.counter(
        "gpu_xid_errors_total",
        "Xid errors, by the class of action that is recommended for them. Every class is exported from the start, "
        "with 0.",
        lambda c: c.classes,
        "class",
    ),
    LAST := _device.gauge(
        "gpu_xid_last_timestamp_seconds",
        "Unix time of the last Xid error by code, with the class of action and the name in NVIDIA's catalogue. Errors "
        "from before the start of the exporter are those in the kernel log.",
        lambda c: {c.vendor.error_labels(xid): at for xid, at in c.last.items()},
        *("xid", "class", "xid_name"),
    ),
    UNREPAIRED := _device.gauge(
        "gpu_xid_unrepaired_timestamp_seconds",
        "Unix time of the first Xid error by code, until the fault is repaired: the GPU was reset, the driver was "
        "loaded again, the machine was rebooted, or the driver requires no recovery action any more. Only codes whose "
        "fault lasts.",
        lambda c: {c.vendor.error_labels(xid): at for xid, at in c.faults.items()},
        *("xid", "class", "xid_name"),
        source="nvmlEventSetWait_v2, /dev/kmsg, the state file",
    ),
    _device.counter(
        "gpu_mig_changes_total",
        "Changes of the GPU's MIG layout. Only of GPUs with MIG.",
        lambda c: c.mig_changes,
        source="nvmlEventSetWait_v2",
    ),
)
SOURCES: tuple[Metric, ...] = (
    _exporter.gauge(
        "gpugauge_event_source_up",
        "1 while Xid errors can be read from the source: nvml (driver events), kmsg (kernel log).",
        lambda sources: sources,
        "source",
    ),
)


class EventsCollector(RegisteredCollector):
    """Rows by uuid, of lost GPUs as well: their last Xid error is the reason. `kernel_log` is None for no log."""

    name = "events"
    metrics = DEVICE + SOURCES

    def __init__(self, kernel_log: KernelLog | None, faults: Faults | None = None) -> None:
        self._kernel = KernelXids(kernel_log) if kernel_log else None
        self._kernel_error = ""
        self._faults = faults or Faults()
        self._states: dict[str, _State] = {}
        self._unnamed: dict[str, Device] = {}  # GPUs whose uuid was not known at the last tick
        self._gone: dict[str, float] = {}  # GPUs that are known no more, since when (monotonic)
        self._waiting: list[_Event] = []  # for their GPU to be known
        self._unclear: dict[tuple[str, int], float] = {}  # by GPU and Xid, since when a record of the log is awaited
        self._strangers: set[str] = set()  # GPUs that are not exported, whose events were logged
        self._sources: dict[str, int] = {}
        self._section = Section(self.name, ())

    @classmethod
    def create(cls, sources: Sources) -> EventsCollector:
        """Return a collector that reads the node's kernel log, and keeps its file of faults."""
        return cls(sources.kernel_log, Faults(FaultFile(sources.fault_file, sources.boot)))

    def collect(self, tick: Tick) -> Section:
        """Count the events since the last tick; the same section if there are none."""
        devices = tick.driver.devices
        self._faults.follow_clock(tick.timestamp - tick.monotonic)
        changed = self._know(devices, tick.monotonic)
        events = [*self._waiting, *self._driver_events(tick)]
        self._waiting = []
        for event in events:
            changed |= self._count(event, tick)
        for placed in self._kernel_events(tick):
            changed |= self._apply(placed, tick)
        for unclear, seen in list(self._unclear.items()):
            if tick.monotonic - seen > _DUPLICATE_SECONDS:
                del self._unclear[unclear]
                self._faults.record(*unclear, tick.timestamp - tick.monotonic + seen)
        for device in devices:
            state = self._states.get(device.uuid)
            if state and state.mig_changes is None and state.vendor.events and device.reading.mig_mode is not None:
                state.mig_changes, changed = 0, True
        self._faults.observe(devices, tick.timestamp)
        changed |= self._update_faults(devices)
        types = [d.reading.event_types for d in devices if d.up and d.reading.event_types is not None]
        failing = any(failure.reading == "events" for d in devices for failure in d.failures)
        up, source = not failing and all(types) and any("xid" in each for each in types), tick.driver.vendor.events
        sources = {source: int(up)} if source else {}
        if self._kernel:
            sources["kmsg"] = int(self._kernel.log.up)
        if changed or sources != self._sources:
            self._sources = sources
            states = families(DEVICE, [((uuid,), state) for uuid, state in self._states.items()])
            self._section = Section(self.name, states + families(SOURCES, [((), sources)]))
        tick.node.xids = {uuid: Xids(dict(s.last), dict(s.faults)) for uuid, s in self._states.items()}
        return self._section

    def _know(self, devices: tuple[Device, ...], now: float) -> bool:
        """Add the GPUs that are known now, and drop those that are long gone. Return whether there was a change."""
        known = {device.uuid: device for device in devices}
        if known.keys() == self._states.keys() or not known:
            return False
        before = set(self._states)
        for uuid, device in known.items():
            if uuid not in self._states:
                former = next((u for u, d in self._unnamed.items() if u not in known and _same_place(d, device)), "")
                new = _State(device.vendor, dict.fromkeys(device.vendor.error_classes, 0))
                self._states[uuid] = self._states.pop(former, new)
                self._faults.rename(former, uuid)
        self._gone = {uuid: self._gone.get(uuid, now) for uuid in self._states.keys() - known.keys()}
        for uuid in [uuid for uuid, since in self._gone.items() if now - since > _GONE_SECONDS]:
            del self._states[uuid]
        self._unnamed = {uuid: device for uuid, device in known.items() if uuid.startswith(_UNNAMED)}
        return before != set(self._states)

    def _update_faults(self, devices: tuple[Device, ...]) -> bool:
        """Take over the errors that are not repaired, of the GPUs that are known. Return whether they have changed."""
        # What was in the log before the start may end the faults of the file, and its own.
        all_read = not (self._kernel and self._kernel.log.has_past)
        known = {device.uuid for device in devices} if all_read else set()
        before = [state.faults for state in self._states.values()]
        for uuid, state in self._states.items():
            state.faults = self._faults.of(uuid) if uuid in known else {}
        return before != [state.faults for state in self._states.values()]

    def _apply(self, placed: Placed, tick: Tick) -> bool:
        """Take over an event of the kernel log. Return whether a row has changed."""
        event, uuid, at, live, ended = placed
        known = not live and event.seconds <= self._faults.read_until
        if not known and event.xid is None:
            self._faults.driver_loaded(at)
            self._unclear.clear()
        elif not known and event.over:
            self._faults.over(uuid, at)
        if event.xid is None:
            return False
        if not known and not ended and not event.nonfatal:
            self._faults.record(uuid, event.xid, at, live=live)
        if live:
            self._unclear.pop((uuid, event.xid), None)
            return self._count(_Event(uuid, event.xid, "kmsg", tick.monotonic), tick)
        last = self._states[uuid].last
        last[event.xid] = max(last.get(event.xid, at), at)
        return True

    def _count(self, event: _Event, tick: Tick) -> bool:
        state = self._states.get(event.uuid)
        if state is None:
            self._keep(event, tick.monotonic)
            return False
        if not state.count(event.xid, event.source, tick.monotonic, tick.timestamp):
            return False
        if event.xid is not None:
            if event.source != "kmsg" and event.xid in state.vendor.in_log and self._kernel and self._kernel.log.up:
                self._unclear[event.uuid, event.xid] = tick.monotonic
            elif event.source != "kmsg":  # whose order is known
                self._faults.record(event.uuid, event.xid, tick.timestamp)
            _, kind, name = state.vendor.error_labels(event.xid)
            named = ", ".join(filter(None, (name, kind)))
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
                source = tick.driver.vendor.events
                source += "" if uuid == reply.uuid else f", event set of {reply.uuid or 'another GPU'}"
                if event.get("type") == "mig":
                    yield _Event(uuid, None, source, tick.monotonic)
                elif event.get("type") == "xid" and isinstance(event.get("xid"), int):
                    yield _Event(uuid, event["xid"], source, tick.monotonic)

    def _kernel_events(self, tick: Tick) -> list[Placed]:
        if self._kernel is None:
            return []
        found = self._kernel.take(tick)
        if self._kernel.log.error != self._kernel_error:
            self._kernel_error = self._kernel.log.error
            if self._kernel_error:
                log.info("kernel log not readable, only Xid errors from the driver are counted: %s", self._kernel_error)
        self._faults.processed_until = self._kernel.until
        return found


def _same_place(one: Device, other: Device) -> bool:
    """Return whether two names are of one GPU: by address, or where none is known by index."""
    if one.reading.pci_bus_id and other.reading.pci_bus_id:
        return pci_address(one.reading.pci_bus_id) == pci_address(other.reading.pci_bus_id)
    return one.reading.index == other.reading.index
