"""Every GPU of the machine, by uuid, also those that bus.py misses, and the replies for the collectors."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gpugauge.driver.api import DRIVER_DOWN, NO_UUID, RELEASED, SUSPENDED, Device, DeviceReading, Group, Reply, typed
from gpugauge.driver.bus import (
    NOT_ENUMERATED,
    REMOVED,
    BusDevice,
    Down,
    Known,
    bus_id,
    missing,
    pci_address,
    unnamed,
)
from gpugauge.driver.codes import GPU_IS_LOST, RESET_REQUIRED, TOO_SLOW
from gpugauge.driver.failing import UP_SECONDS, Failing
from gpugauge.driver.remembered import Remembered
from gpugauge.driver.vendors import VENDORS, Vendor, vendor_named

_MAX_PENDING_REPLIES = 100_000  # the oldest are dropped first
_UNREAD = "unread"  # remembered, and the driver has not been asked yet
# Reasons that do not say what is wrong with the GPU: a more exact one is kept instead of them.
_GENERAL = frozenset({"ok", RELEASED, SUSPENDED, DRIVER_DOWN, NOT_ENUMERATED, REMOVED, _UNREAD})

# Reasons of a driver that are about the GPU.
_OF_GPU = frozenset({GPU_IS_LOST, RESET_REQUIRED})


class _Entry:
    """The latest values of one GPU by group, and the times of their readings (monotonic seconds)."""

    def __init__(self, uuid: str, vendor: Vendor) -> None:
        self.uuid, self.vendor = uuid, vendor
        self.index = -1
        self.reason = "ok"
        self.values: dict[str, dict[str, Any]] = {}
        self.times: dict[str, float] = {}
        self.generations: dict[str, int] = {}
        self.view: Device | None = None
        self.remembered = False  # by an earlier daemon, and not read since
        self.elsewhere = ""  # why the driver does not have it although it is not lost
        self.seen = 0.0  # Unix time at which it was enumerated last
        self.detail: dict[str, object] = {}  # of its failure, for the log
        self.failing = Failing()
        self.silent = False  # down because nothing could be read

    @property
    def anonymous(self) -> bool:
        """Whether the uuid of the GPU is not known: `uuid` is made of its bus id or its index."""
        return self.uuid.startswith(("PCI-", "INDEX-"))

    @property
    def address(self) -> str:
        """The PCI address, empty if it is not known."""
        return pci_address(self.values.get("static", {}).get("pci_bus_id") or "")

    def hidden(self, selected: frozenset[str]) -> bool:
        """Whether the settings select other GPUs only, as far as that is known of one that has not been read."""
        return self.remembered and bool(selected) and not {self.uuid, str(self.index)} & selected

    def set(self, group: str, values: dict[str, Any] | None, now: float) -> None:
        if values is None:
            self.values.pop(group, None)
        else:
            self.values[group] = values
        self.times[group] = now
        self.generations[group] = self.generations.get(group, 0) + 1
        self.view = None

    def merge(self, reply: Reply, limits: Mapping[Group, float], now: float) -> None:
        """Set the values of a reply; of fields that failed, keep the last ones for as long as they hold."""

        def held(name: str) -> tuple[str, float, float] | None:
            found = next((group for group, values in self.values.items() if name in values), "")
            return (found, self.times[found], limits.get(found, math.inf)) if found else None  # type: ignore[call-overload]  # names of groups

        before = self.failing.failures()
        self.failing.read(reply, held, now, time.time())
        lost = self.failing.lost()
        for group, values in reply.values.items():
            new, old = typed(values), self.values.get(group, {})
            if reply.errors:
                # What the GPU is does not change; its index is not read at all.
                kept = old if group == "static" else reply.errors
                new |= {name: old[name] for name in kept if name in old and name not in new}
            for name in lost & new.keys():
                del new[name]
            self.set(group, new, now)
        if self.failing.failures() != before:
            self.view = None

    def expire(self, limits: Mapping[Group, float], now: float) -> None:
        """Drop the values that hold no longer."""
        for group, limit in limits.items():
            if group in self.values and now - self.times[group] > limit:
                self.set(group, None, self.times[group])
        for name in self.failing.expire(now):
            self.view = None
            for key, values in self.values.items():
                if name in values:
                    self.set(key, {n: value for n, value in values.items() if n != name}, self.times[key])

    def device(self) -> Device:
        if self.view is None:
            up = self.reason == "ok" and "fast" in self.values
            reading = DeviceReading.of(self.values.values() if up else (self.values.get("static", {}),))
            failures = self.failing.failures()
            late = TOO_SLOW if any(failure.reason == TOO_SLOW for failure in failures) else "stale"
            reason = self.reason if self.reason != "ok" or up else late
            failures = failures if up else ()
            self.view = Device(self.uuid, up, reason, reading, dict(self.generations), failures, self.vendor)
        return self.view


class Inventory:
    """Merges replies into devices, without values older than the limit of their group, and queues the replies."""

    def __init__(self, limits: dict[Group, float], host: str = "", vendor: Vendor = VENDORS[0]) -> None:
        self.limits, self._host, self._vendor = limits, host, vendor
        self._devices: dict[str, _Entry] = {}
        self._by_index: dict[int, _Entry] = {}
        self._replies: deque[Reply] = deque(maxlen=_MAX_PENDING_REPLIES)
        self._worker = 0
        self.excluded: dict[int, tuple[str, str]] = {}
        """The GPUs that the settings exclude: uuid and address by index."""
        self._failures: dict[int, tuple[str, dict[str, object]]] = {}  # of GPUs that were not identified, by index
        self._settled: object = None  # the facts that were settled last
        self.up_seconds = UP_SECONDS
        """For so long a GPU of which nothing could be read must be read again before it is up."""
        self.is_suspended: Callable[[str], bool] = lambda _: False  # the GPU at a PCI address, by the kernel
        self.forgotten: set[str] = set()
        """Uuids of GPUs that are not to be shown until they are read again."""

    def remember(self, gpus: Iterable[Remembered], forgotten: Iterable[str]) -> None:
        """Add the GPUs that an earlier daemon has read; they are shown once the driver has been asked."""
        self.forgotten |= set(forgotten)
        for gpu in gpus:
            entry = self._devices[gpu.uuid] = _Entry(gpu.uuid, self._vendor)
            entry.index, entry.reason, entry.remembered, entry.seen = gpu.index, _UNREAD, True, gpu.seen
            identity = {"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name, "pci_bus_id": gpu.pci_bus_id}
            entry.values["static"] = {key: value for key, value in identity.items() if value is not None}

    def remembered(self) -> tuple[Remembered, ...]:
        """Return the GPUs that a later daemon is to know, and that the settings do not exclude."""
        kept = sorted((e for e in self._devices.values() if not e.anonymous), key=lambda entry: entry.uuid)
        named = [(entry, entry.values.get("static", {})) for entry in kept]
        return tuple(Remembered(e.uuid, e.index, s.get("name"), s.get("pci_bus_id"), e.seen) for e, s in named)

    def begin(self, worker: int, *, same_devices: bool = True) -> None:
        """Record the start of a worker by its ordinal. Failures stay if the indexes mean the same GPUs as before."""
        self.excluded, self._worker = {}, worker
        self.reset_indexes()
        if not same_devices:
            self._failures.clear()

    def accept(self, index: int, reply: Reply, devices: frozenset[str]) -> None:
        """Merge and queue a reply, unless the GPU is not among `devices`, by index or uuid; all when empty."""
        static = reply.values.get("static", {})
        uuid = static.get("uuid")
        if uuid and devices and not {str(index), uuid} & devices:
            self.excluded[index] = (uuid, pci_address(static.get("pci_bus_id") or ""))
            self._failures.pop(index, None)
            self._devices.pop(uuid, None)
            return
        self.apply(reply, time.monotonic())
        reply.uuid, reply.worker = self.uuid(index) or "", self._worker
        self._replies.append(reply)

    def drain(self) -> tuple[Reply, ...]:
        """Return and remove the queued replies, oldest first."""
        return tuple(self._replies.popleft() for _ in range(len(self._replies)))

    def reset_indexes(self) -> None:
        """Forget the GPU of each index: a new worker enumerates them again."""
        self._by_index.clear()
        self._settled = None

    def uuid(self, index: int) -> str | None:
        """Return the uuid of the GPU that the current worker enumerates at `index`."""
        device = self._by_index.get(index)
        return device.uuid if device else None

    def apply(self, reply: Reply, now: float) -> None:
        """Merge a reply to a read. A reply for a GPU without a known uuid is dropped."""
        if reply.index is None:
            return
        uuid = reply.values.get("static", {}).get("uuid")
        if uuid and any(e.uuid == uuid for index, e in self._by_index.items() if index != reply.index):
            # Its values would be mixed with those of the other GPU.
            self.fail_index(reply.index, NO_UUID, uuid_of_another_gpu=uuid)
            return
        if uuid:
            device = self._devices.setdefault(uuid, _Entry(uuid, self._vendor))
            device.index, device.remembered, device.elsewhere = reply.index, False, ""
            device.vendor = vendor_named(reply.values["static"].get("vendor"), self._vendor)
            self._by_index[reply.index] = device
            self.forgotten -= self._names(device)
        known = self._by_index.get(reply.index)
        if reply.failed is not None:
            reason = known.failing.read_nothing(reply.failed) if known else reply.failed
            if reason and not (known and known.silent):
                self.fail_index(reply.index, reason, **reply.failed_field)
                if known:
                    known.silent = True
            return
        if known is None:
            if "static" in reply.values:
                self.fail_index(reply.index, NO_UUID)
            return
        known.merge(reply, self.limits, now)
        if known.silent and not known.failing.is_back(now, self.up_seconds):
            return
        known.reason, known.seen, known.detail, known.silent = "ok", time.time(), {}, False
        self._failures.pop(reply.index, None)

    def suspended(self) -> set[int]:
        """Mark the GPUs that the kernel has suspended, and return their indexes."""
        found = {index: e for index, e in self._by_index.items() if e.address and self.is_suspended(e.address)}
        for entry in [entry for entry in found.values() if entry.reason == "ok"]:
            self.fail(entry.uuid, SUSPENDED)
        return set(found)

    def is_silent(self, index: int) -> bool:
        """Return whether nothing can be read of the GPU at `index`."""
        known = self._by_index.get(index)
        return known.failing.is_down if known else index in self._failures

    def is_doubted(self) -> bool:
        """Return whether a GPU is to be read again soon, to see whether it is down."""
        return any(known.failing.is_doubted for known in self._by_index.values())

    def again(self, index: int, now: float) -> Iterable[Group]:
        """Return the groups of a GPU that are read also while they are not due, because some of them fail."""
        return self._by_index[index].failing.again(now)  # type: ignore[return-value]  # names of groups

    def fail_index(self, index: int, reason: str, **detail: object) -> None:
        """Record that the GPU that the worker enumerates at `index` cannot be read; `detail` is for the log."""
        known = self._by_index.get(index)
        if known:
            known.detail = detail
            self.fail(known.uuid, reason)
        self._failures[index] = (reason, detail)

    def fail(self, uuid: str, reason: str) -> None:
        """Mark a GPU as down: its identity stays, its readings are dropped."""
        device = self._devices[uuid]
        device.reason, device.view, device.silent = reason, None, False
        for group in list(device.values):
            if group != "static":
                device.set(group, None, device.times.get(group, 0.0))

    def settle(
        self,
        count: int,
        bus: Collection[BusDevice] | None,
        enumerable: Collection[str] = (),
        selected: frozenset[str] = frozenset(),
    ) -> dict[str, str]:
        """Mark the GPUs of `count` that were not identified: they are down. Return the successors of replaced ones."""
        settled = (count, bus, tuple(self._by_index), tuple(self._failures.items()), len(self._devices))
        if settled == self._settled:
            return {}
        self._settled = settled
        identified = {index: (e.uuid, e.address) for index, e in self._by_index.items()} | self.excluded
        failures = {index: reason for index, (reason, _) in self._failures.items()}
        failures = {index: reason for index, reason in failures.items() if index < count and index not in identified}
        known = [Known(e.uuid, e.index, e.address, e.remembered) for e in self._devices.values() if not e.anonymous]
        found = missing(identified, failures, count, known, bus, enumerable, self._host)
        for uuid in found.replaced:
            del self._devices[uuid]
        for uuid, why in found.elsewhere.items():
            self._devices[uuid].elsewhere = why
            self.fail(uuid, NOT_ENUMERATED)  # what was wrong before no longer applies
        down = {gpu.uuid for gpu in found.down if self._mark(gpu, selected)}
        on_bus = None if bus is None else {device.address for device in bus}
        for entry in [e for e in self._devices.values() if e.anonymous and e.uuid not in down]:
            # One that has left the bus stays; any other has been identified.
            if on_bus is not None and entry.address and entry.address not in on_bus:
                self.fail(entry.uuid, REMOVED if entry.reason in _GENERAL else entry.reason)
            elif len(identified) + len(failures) >= count:
                del self._devices[entry.uuid]
        return dict(found.replaced)

    def _mark(self, gpu: Down, selected: frozenset[str]) -> bool:
        """Mark a GPU as down; return whether it is shown."""
        entry = self._devices.get(gpu.uuid)
        if entry is None:
            if gpu.uuid in self.forgotten or (selected and str(gpu.index) not in selected):
                return False
            entry = self._devices[gpu.uuid] = _Entry(gpu.uuid, self._vendor)
            identity = {"index": gpu.index, "pci_bus_id": bus_id(gpu.address) if gpu.address else None}
            entry.values["static"] = identity
        elif entry.hidden(selected):
            return False
        entry.index = gpu.index if gpu.index >= 0 else entry.index
        entry.values.setdefault("static", {})["index"] = entry.index
        entry.elsewhere = ""
        if gpu.reason not in _GENERAL or entry.reason in _GENERAL:
            entry.detail = self._failures.get(gpu.index, ("", {}))[1]
            if entry.reason != gpu.reason:
                self.fail(gpu.uuid, gpu.reason)
        return True

    def driver_down(self, bus: Collection[BusDevice] | None, selected: frozenset[str], reason: str = "") -> None:
        """Mark all GPUs as down with the driver, for a `reason`, also those on the `bus` that were never read."""
        self.reset_indexes()
        for entry in self._devices.values():
            # That nothing can be read of a GPU is the fault of a driver that lets none be read.
            same = entry.silent and entry.reason == reason not in _OF_GPU
            if (same or entry.reason in _GENERAL) and not entry.hidden(selected):
                silent = entry.silent or entry.failing.is_down
                self.fail(entry.uuid, DRIVER_DOWN)
                entry.silent = silent
        addresses = {entry.address for entry in self._devices.values()}
        for device in bus or ():
            if device.visible and device.address not in addresses:
                uuid = unnamed(device.address, -1, self._host)
                self._mark(Down(uuid, DRIVER_DOWN, address=device.address), selected)

    def release(self) -> None:
        """Mark all GPUs as released; drop their readings."""
        self.reset_indexes()
        for uuid in self._devices:
            self.fail(uuid, RELEASED)

    def forget(self, uuid: str) -> None:
        """Remove a GPU until it is read again."""
        entry = self._devices.pop(uuid, None)
        if entry:
            self._by_index = {index: known for index, known in self._by_index.items() if known is not entry}
            self.forgotten |= self._names(entry)

    def _names(self, entry: _Entry) -> set[str]:
        return {entry.uuid, unnamed(entry.address, entry.index, self._host)}

    def last_seen(self, uuid: str) -> tuple[float, dict[str, object]]:
        """Return the Unix time at which a GPU answered last, 0 if never, and the fields of a line about its failure."""
        entry = self._devices.get(uuid)
        return (entry.seen, entry.detail) if entry else (0.0, {})

    def elsewhere(self) -> dict[str, str]:
        """Return the GPUs that another driver or container has, with the reason."""
        return {entry.uuid: entry.elsewhere for entry in self._devices.values() if entry.elsewhere}

    def devices(self, now: float) -> tuple[Device, ...]:
        """Return every GPU in the order of the last known index, without values that are too old."""
        for device in self._devices.values():
            device.expire(self.limits, now)
        shown = [entry for entry in self._devices.values() if entry.reason != _UNREAD and not entry.elsewhere]
        for entry in shown:
            # After a GPU is lost, the driver may give its index to another one.
            static = entry.values.get("static", {})
            if self._by_index.get(entry.index, entry) is not entry and static.get("index", -1) >= 0:
                static["index"], entry.view = -1, None
        return tuple(entry.device() for entry in sorted(shown, key=lambda entry: (entry.index, entry.uuid)))
