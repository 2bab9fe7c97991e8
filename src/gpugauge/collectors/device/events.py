"""What happens to a GPU: Xid errors, from the driver's events and the kernel log, and changes of its MIG layout."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.kmsg import KernelLog, pci_address
from gpugauge.driver.api import Device
from gpugauge.metric import NONE, TIMESTAMP, Metric, Table, families
from gpugauge.snapshot import Section

log = logging.getLogger("gpugauge.events")

# What an Xid code asks for, after NVIDIA's catalogue. https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
XID_CLASSES: dict[str, frozenset[int]] = {
    # The program did something wrong, or one of its engines failed: restart it.
    "application": frozenset(
        {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 69, 70, 71, 72, 75, 76, 77, 80, 85, 94},
    ),
    # Nothing to do, unless others follow.
    "ignorable": frozenset({37, 38, 43, 44, 63, 66, 67, 92, 93, 121, 137, 141, 157, 160, 161}),
    # Reset the GPU.
    "reset": frozenset({46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}),
    # A workflow of its own: memory, NVLink.
    "workflow": frozenset({48, 74, 144, 145, 146, 147, 148, 149, 150}),
    # Look at the machine: off the bus, power, firmware.
    "node": frozenset({54, 79, 151}),
    # The recovery action changed: see gpu_recovery_action.
    "recovery": frozenset({154}),
    # A consequence of the error before it.
    "follow_up": frozenset({45}),
    # Not in this table.
    "other": frozenset(),
}
_CLASS = {xid: name for name, codes in XID_CLASSES.items() for xid in codes}
_XID_EVENT = 0x8  # in DeviceReading.event_types
# Both sources tell of the same error within this time; what one tells twice happened twice.
_SAME_SECONDS = 10.0


def xid_class(xid: int) -> str:
    """Return the class of an Xid code, `other` for one that is not in the catalogue."""
    return _CLASS.get(xid, "other")


@dataclass(slots=True)
class _State:
    """What happened to one GPU since the daemon started."""

    classes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(XID_CLASSES, 0))
    last: dict[str, float] = field(default_factory=dict)
    mig_changes: int = 0
    # Told by one source and not yet by the other: code, source, monotonic seconds.
    unpaired: list[tuple[int, str, float]] = field(default_factory=list)

    def count(self, xid: int, source: str, now: float, timestamp: float) -> bool:
        """Count an error, unless the other source has told of it already; return whether it is new."""
        self.unpaired = [known for known in self.unpaired if now - known[2] <= _SAME_SECONDS]
        for known in self.unpaired:
            if known[0] == xid and known[1] != source:
                self.unpaired.remove(known)
                return False
        self.unpaired.append((xid, source, now))
        self.classes[xid_class(xid)] += 1
        self.last[str(xid)] = timestamp
        return True


_device = Table("uuid")
_exporter = Table()

DEVICE: tuple[Metric, ...] = (
    _device.counter(
        "gpu_xid_errors_total",
        "Xid errors by what they ask for; 0 from the start for every class.",
        NONE,
        lambda c: c.classes,
        "class",
        source="nvmlEventSetWait_v2, /dev/kmsg",
    ),
    _device.gauge(
        "gpu_xid_last_timestamp_seconds",
        "Unix time of the last Xid error by code, seen since the exporter started.",
        TIMESTAMP,
        lambda c: c.last,
        "xid",
        source="nvmlEventSetWait_v2, /dev/kmsg",
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
        "1 while Xid errors can be read from the source: nvml (the driver's events), kmsg (the kernel log).",
        NONE,
        lambda sources: sources,
        "source",
    ),
)


class EventsCollector:
    """Rows by uuid, of lost GPUs too: their last error is why. `kernel` is None where the log is not to be read, for
    example beside a simulated driver.
    """

    name = "events"
    metrics = DEVICE + SOURCES

    def __init__(self, kernel: KernelLog | None) -> None:
        self._kernel = kernel
        self._kernel_error = ""
        self._states: dict[str, _State] = {}
        self._sources: dict[str, int] = {}
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Count what happened since the tick before; the same section when nothing did."""
        devices = tick.driver.devices
        new = [d.uuid for d in devices if d.uuid not in self._states]
        self._states.update((uuid, _State()) for uuid in new)
        happened = [self._take(*event, tick) for event in (*self._driver_events(tick), *self._kernel_events(tick))]
        sources = {"nvml": int(any(d.up and (d.reading.event_types or 0) & _XID_EVENT for d in devices))}
        if self._kernel:
            sources["kmsg"] = int(self._kernel.up)
        if new or any(happened) or sources != self._sources:
            self._sources = sources
            states = families(DEVICE, [((uuid,), state) for uuid, state in self._states.items()])
            self._section = Section(self.name, states + families(SOURCES, [((), sources)]))
        return self._section

    def _take(self, uuid: str, xid: int | None, source: str, tick: Tick) -> bool:
        """Count one event, `xid` None for a change of the MIG layout; return whether it is news."""
        state = self._states.get(uuid)
        if state is None:
            return False
        if xid is None:
            state.mig_changes += 1
            return True
        if not state.count(xid, source, tick.monotonic, tick.timestamp):
            return False
        log.warning("Xid %d on %s (%s, from %s)", xid, uuid, xid_class(xid), source)
        return True

    def _driver_events(self, tick: Tick) -> Iterator[tuple[str, int | None, str]]:
        for reply in tick.replies:
            for event in reply.events:
                uuid = event.get("uuid") or reply.uuid
                if event.get("type") == "mig":
                    yield uuid, None, "nvml"
                elif event.get("type") == "xid" and isinstance(event.get("xid"), int):
                    yield uuid, event["xid"], "nvml"

    def _kernel_events(self, tick: Tick) -> Iterator[tuple[str, int | None, str]]:
        if self._kernel is None:
            return
        found = self._kernel.read(tick.monotonic)
        if self._kernel.error != self._kernel_error:
            self._kernel_error = self._kernel.error
            if self._kernel_error:
                log.info("Xid errors that the driver does not report will be missed: %s", self._kernel_error)
        addresses = _addresses(tick.driver.devices) if found else {}
        for address, xid in found:
            yield addresses.get(address, ""), xid, "kmsg"


def _addresses(devices: tuple[Device, ...]) -> dict[str, str]:
    """Return uuids by PCI address; lost GPUs keep theirs."""
    return {pci_address(d.reading.pci_bus_id): d.uuid for d in devices if d.reading.pci_bus_id}
