"""The GPUs that should be there: compared with those that answer, logged at each change, and stored."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gpugauge.base.logline import Condition, fields
from gpugauge.driver.api import RELEASED, SUSPENDED, Device
from gpugauge.driver.bus import NOT_ENUMERATED, REMOVED, BusDevice, pci_address
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.reader import QUARANTINED
from gpugauge.driver.remembered import StateFile

log = logging.getLogger("gpugauge.driver")

_SCAN_SECONDS = 30.0
_SAVE_SECONDS = 3600.0  # the time at which a GPU was seen may be this old in the state file
# Reasons of a driver that is not installed here, or not usable: they say nothing about GPUs that were never read.
_NOT_INSTALLED = frozenset(
    {"library_not_found", "driver_not_loaded", "library_mismatch", "no_permission", "function_not_found"}
)


@dataclass(frozen=True, slots=True)
class _GpuCondition:
    """The condition of a GPU: "ok" or the reason for which it is down. Times are monotonic seconds."""

    reason: str
    since: float
    lost: float | None  # until when it was ok while this daemon runs
    address: str
    index: int


class Roster:
    """Settles, logs and remembers the GPUs of an inventory. `pci` returns those on the bus, None if unknown."""

    def __init__(
        self,
        inventory: Inventory,
        pci: Callable[[], Iterable[BusDevice] | None] = lambda: None,
        state: StateFile | None = None,
    ) -> None:
        self._inventory, self._pci, self._state = inventory, pci, state or StateFile(None)
        self.forget_after = 0.0
        self._bus: tuple[BusDevice, ...] | None = None
        self._enumerable: frozenset[str] = frozenset()
        self._next_scan = self._next_save = 0.0
        self._saved: object = None
        self._conditions: dict[str, _GpuCondition] = {}
        self._elsewhere: dict[str, str] = {}
        self._settled = self._complete = False  # whether all GPUs were asked once, and their conditions logged
        self._to_forget: deque[str] = deque()
        self._selection = Condition(log)
        inventory.remember(*self._state.load())

    def begin(self, now: float) -> bool:
        """Record which GPUs a worker may enumerate that starts now; return whether they are those of the one before."""
        before = self._enumerable
        self._scan(now)
        self._enumerable = frozenset(device.address for device in self._bus or () if device.visible)
        return before == self._enumerable

    def settle(self, count: int, selected: frozenset[str], now: float) -> None:
        """Find the GPUs that are missing after the worker was asked for `count` GPUs; store the others."""
        if now >= self._next_scan:
            self._scan(now)
        for uuid, successor in self._inventory.settle(count, self._bus, self._enumerable, selected).items():
            log.warning("GPU replaced", extra=fields(uuid=uuid, successor=successor, **self._forgotten(uuid)))
        for uuid in self._expired(now) if self.forget_after else ():
            self._forget(uuid)
        self._log_elsewhere()
        self._check_selection(selected, now)
        self._save(now)
        self._settled = True

    def _check_selection(self, selected: frozenset[str], now: float) -> None:
        """Warn of the names in `driver.devices` that no GPU has, and list the GPUs."""
        found = {index: uuid for index, (uuid, _) in self._inventory.excluded.items()}
        found |= {device.reading.index: device.uuid for device in self._inventory.devices(now)}
        unmatched = sorted(selected - {str(index) for index in found} - set(found.values()))
        if unmatched:
            present = ", ".join(f"{index} {uuid}" for index, uuid in sorted(found.items())) or "none"
            self._selection.failing(f"driver.devices: no GPU matches {', '.join(unmatched)}; the GPUs are: {present}")
        else:
            self._selection.recovered("each entry of driver.devices matches a GPU")

    def settle_failed(self, count: int, selected: frozenset[str]) -> None:
        """Mark the GPUs that have failed so far: the worker ended before it was asked for all."""
        self._inventory.settle(count, self._bus, self._enumerable, selected)

    def driver_down(self, reason: str, selected: frozenset[str]) -> None:
        """Mark all GPUs as down, because the driver is."""
        self._inventory.driver_down(None if reason in _NOT_INSTALLED else self._bus, selected, reason)

    def forget(self, uuid: str) -> None:
        """Remove a GPU that is down at the next turn. For other threads."""
        self._to_forget.append(uuid)

    def turn(self) -> None:
        """Forget the GPUs that are to be forgotten."""
        while self._to_forget:
            self._forget(self._to_forget.popleft())
            self._next_save = 0.0
            self._save(time.monotonic())

    def close(self) -> None:
        """Store when the GPUs were seen last."""
        self._next_save = 0.0
        if self._complete:
            self._save(time.monotonic())

    def log_changes(self, devices: tuple[Device, ...], now: float) -> None:
        """Log each GPU whose condition has changed, in one line."""
        found = {device.uuid for device in devices}
        for device in devices:
            reason = "ok" if device.up else device.reason
            if reason in {RELEASED, SUSPENDED}:
                continue
            before = self._conditions.get(device.uuid) or self._formerly(device, found)
            if before is None or before.reason != reason:
                self._log_change(device, reason, before, now)
                address = pci_address(device.reading.pci_bus_id or "")
                lost = (now if before.reason == "ok" else before.lost) if before else None
                self._conditions[device.uuid] = _GpuCondition(reason, now, lost, address, device.reading.index)
        for uuid in self._conditions.keys() - found:
            del self._conditions[uuid]
        self._complete = self._settled

    def _formerly(self, device: Device, found: set[str]) -> _GpuCondition | None:
        """Return the condition of a GPU from the time before its uuid was known."""
        address = pci_address(device.reading.pci_bus_id or "")
        for uuid, known in self._conditions.items():
            same = known.address == address if known.address else known.index == device.reading.index
            if same and uuid not in found and uuid.startswith(("PCI-", "INDEX-")):
                return known
        return None

    def _log_change(self, device: Device, reason: str, before: _GpuCondition | None, now: float) -> None:
        reading = device.reading
        named: dict[str, object] = {} if reading.index < 0 else {"index": reading.index}
        named |= {"uuid": device.uuid, "reason": reason}
        if reading.pci_bus_id:
            named["pci_bus_id"] = reading.pci_bus_id
        seen, detail = self._inventory.last_seen(device.uuid)
        if before:
            named |= {"previous": before.reason, "seconds": round(now - before.since, 1)}
        elif seen:
            named |= {"previous": "ok before the start", "seconds": round(time.time() - seen)}
        if reason != "ok":
            verb = "quarantined" if reason in QUARANTINED else "down"
            log.warning("GPU %s: %s", verb, reason, extra=fields(**named, **detail))
        elif before:
            log.info("GPU back", extra=fields(**named))
        elif self._complete:
            log.info("GPU found", extra=fields(**named))

    def _log_elsewhere(self) -> None:
        """Log the GPUs that another driver or container has: they are not lost."""
        known = self._inventory.elsewhere()
        read = {pci_address(gpu.pci_bus_id or "") for gpu in self._inventory.remembered()}
        known |= {d.address: d.elsewhere for d in self._bus or () if d.elsewhere and d.address not in read}
        for name, why in known.items():
            if self._elsewhere.get(name) != why:
                log.info("GPU not read, not lost: %s", why, extra=fields(gpu=name))
        self._elsewhere = known

    def _expired(self, now: float) -> list[str]:
        """Return the GPUs not listed for longer than `forget_after`; by the clock, which may be set, if never read."""
        gone = {uuid: c.lost for uuid, c in self._conditions.items() if c.reason in {NOT_ENUMERATED, REMOVED}}
        gpus = [(gpu, gone[gpu.uuid]) for gpu in self._inventory.remembered() if gpu.uuid in gone and gpu.seen]
        ages = {gpu.uuid: time.time() - gpu.seen if lost is None else now - lost for gpu, lost in gpus}
        return [uuid for uuid, age in ages.items() if age > self.forget_after]

    def _forget(self, uuid: str) -> None:
        log.info("GPU forgotten", extra=fields(uuid=uuid, **self._forgotten(uuid)))
        self._inventory.forget(uuid)

    def _forgotten(self, uuid: str) -> dict[str, object]:
        """Return the fields about the last condition of a GPU that is no longer shown; end it."""
        before = self._conditions.pop(uuid, None)
        return {"previous": before.reason, "seconds": round(time.monotonic() - before.since, 1)} if before else {}

    def _scan(self, now: float) -> None:
        found = self._pci()
        self._bus, self._next_scan = None if found is None else tuple(found), now + _SCAN_SECONDS

    def _save(self, now: float) -> None:
        """Write the state file if a GPU has another identity than before, and every hour."""
        gpus = self._inventory.remembered()
        key = ([replace(gpu, seen=0.0) for gpu in gpus], set(self._inventory.forgotten))
        if key != self._saved or now >= self._next_save:
            self._saved, self._next_save = key, now + _SAVE_SECONDS
            self._state.save(gpus, self._inventory.forgotten)
