"""What the worker's answers add up to: every GPU ever seen since the daemon started, under its uuid."""

from __future__ import annotations

from sys import intern
from typing import Any

from gpugauge.driver.api import (
    DEVICE_FIELDS,
    RELEASED,
    Device,
    DeviceReading,
    Group,
    MigReading,
    ProcessReading,
    Reply,
    code_name,
)


class _Entry:
    """The latest values of one GPU by group, and when they came (monotonic seconds)."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.index = -1
        self.reason = "ok"
        self.values: dict[str, dict[str, Any]] = {}
        self.times: dict[str, float] = {}
        self.generations: dict[str, int] = {}
        self.view: Device | None = None

    def set(self, group: str, values: dict[str, Any] | None, now: float) -> None:
        if values is None:
            self.values.pop(group, None)
        else:
            self.values[group] = _typed(values)
        self.times[group] = now
        self.generations[group] = self.generations.get(group, 0) + 1
        self.view = None

    def device(self) -> Device:
        if self.view is None:
            up = self.reason == "ok" and "fast" in self.values
            reading = DeviceReading.of(self.values.values() if up else (self.values.get("static", {}),))
            reason = self.reason if self.reason != "ok" or up else "stale"
            self.view = Device(self.uuid, up, reason, reading, dict(self.generations))
        return self.view


class Inventory:
    """Merges answers into devices. Values older than their group's limit (seconds) are dropped, never shown as new."""

    def __init__(self, limits: dict[Group, float]) -> None:
        self.limits = limits
        self._devices: dict[str, _Entry] = {}
        self._by_index: dict[int, _Entry] = {}

    def reset_indexes(self) -> None:
        """Forget which index means which GPU: a new worker enumerates anew."""
        self._by_index.clear()

    def uuid(self, index: int) -> str | None:
        """Return the uuid of the GPU that the present worker enumerates at `index`."""
        device = self._by_index.get(index)
        return device.uuid if device else None

    def apply(self, reply: Reply, now: float) -> None:
        """Take in one answer to a read; an answer about a GPU that never told its uuid is dropped."""
        if reply.index is None:
            return
        uuid = reply.values.get("static", {}).get("uuid")
        if uuid:
            device = self._devices.setdefault(uuid, _Entry(uuid))
            device.index = reply.index
            self._by_index[reply.index] = device
        known = self._by_index.get(reply.index)
        if known is None:
            return
        if reply.failed is not None:
            self.fail(known.uuid, code_name(reply.failed))
            return
        known.reason = "ok"
        for group, values in reply.values.items():
            known.set(group, values, now)

    def fail(self, uuid: str, reason: str) -> None:
        """Mark a GPU as down; its identity stays, its readings go at once."""
        device = self._devices[uuid]
        device.reason, device.view = reason, None
        for group in list(device.values):
            if group != "static":
                device.set(group, None, device.times.get(group, 0.0))

    def expect_only(self, indexes: set[int]) -> None:
        """Mark the GPUs that the present worker does not enumerate as gone."""
        present = {self._by_index[i].uuid for i in indexes if i in self._by_index}
        for uuid, device in self._devices.items():
            if uuid not in present and device.reason in {"ok", RELEASED}:
                self.fail(uuid, "not_enumerated")

    def release(self) -> None:
        """Drop all readings, and what is known of any GPU being up: nobody looks any more."""
        self.reset_indexes()
        for uuid in self._devices:
            self.fail(uuid, RELEASED)

    def forget(self, uuid: str) -> None:
        """Take out a GPU that is no longer to be read."""
        self._devices.pop(uuid, None)

    def devices(self, now: float) -> tuple[Device, ...]:
        """Return every GPU in the order of the last known index, without what is too old."""
        for device in self._devices.values():
            for group, limit in self.limits.items():
                if group in device.values and now - device.times[group] > limit:
                    device.set(group, None, device.times[group])
        return tuple(device.device() for device in sorted(self._devices.values(), key=lambda c: (c.index, c.uuid)))


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    """Return a group's values as DeviceReading has them; once when they come, not with each new reading of others."""
    # Interned as the names of attributes are: they are found by identity.
    known = {intern(key): value for key, value in values.items() if key in DEVICE_FIELDS}
    if known.get("compute_capability"):
        known["compute_capability"] = tuple(known["compute_capability"])
    if known.get("processes") is not None:
        known["processes"] = tuple(ProcessReading(**p) for p in known["processes"])
    if known.get("mig_instances") is not None:
        known["mig_instances"] = tuple(MigReading(**m) for m in known["mig_instances"])
    return known
