"""Every GPU that was enumerated since the daemon started, by uuid, and the replies for the collectors."""

from __future__ import annotations

import time
from collections import deque
from sys import intern
from typing import Any

from gpugauge.driver.api import RELEASED, Device, DeviceReading, Group, MigReading, ProcessReading, Reply, code_name

_MAX_PENDING_REPLIES = 100_000  # the oldest are dropped first


class _Entry:
    """The latest values of one GPU by group, and the times of their readings (monotonic seconds)."""

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
    """Merges replies into devices; drops values older than the limit of their group (seconds). The thread of the
    supervisor adds replies, the sampler drains them.
    """

    def __init__(self, limits: dict[Group, float]) -> None:
        self.limits = limits
        self._devices: dict[str, _Entry] = {}
        self._by_index: dict[int, _Entry] = {}
        self._replies: deque[Reply] = deque(maxlen=_MAX_PENDING_REPLIES)
        self._worker = 0
        self.excluded: set[int] = set()
        """Indexes of GPUs that the settings exclude."""

    def begin(self, worker: int) -> None:
        """Record the start of a worker, which enumerates the GPUs again; `worker` is its ordinal."""
        self.excluded, self._worker = set(), worker
        self.reset_indexes()

    def accept(self, index: int, reply: Reply, devices: frozenset[str]) -> None:
        """Merge and queue a reply, unless the GPU is not among `devices`, by index or uuid; all when empty."""
        uuid = reply.values.get("static", {}).get("uuid")
        if uuid and devices and not {str(index), uuid} & devices:
            self.excluded.add(index)
            self.forget(uuid)
            return
        self.apply(reply, time.monotonic())
        self.queue(index, reply)

    def queue(self, index: int, reply: Reply) -> None:
        """Add a reply to those that the collectors receive."""
        reply.uuid, reply.worker = self.uuid(index) or "", self._worker
        self._replies.append(reply)

    def drain(self) -> tuple[Reply, ...]:
        """Return and remove the queued replies, oldest first."""
        replies = []
        while self._replies:
            replies.append(self._replies.popleft())
        return tuple(replies)

    def reset_indexes(self) -> None:
        """Forget the GPU of each index: a new worker enumerates them again."""
        self._by_index.clear()

    def uuid(self, index: int) -> str | None:
        """Return the uuid of the GPU that the current worker enumerates at `index`."""
        device = self._by_index.get(index)
        return device.uuid if device else None

    def apply(self, reply: Reply, now: float) -> None:
        """Merge a reply to a read. A reply for a GPU without a known uuid is dropped."""
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
        """Mark a GPU as down: its identity stays, its readings are dropped."""
        device = self._devices[uuid]
        device.reason, device.view = reason, None
        for group in list(device.values):
            if group != "static":
                device.set(group, None, device.times.get(group, 0.0))

    def expect_only(self, indexes: set[int]) -> None:
        """Mark the GPUs that the current worker does not enumerate as down."""
        present = {self._by_index[i].uuid for i in indexes if i in self._by_index}
        for uuid, device in self._devices.items():
            if uuid not in present and device.reason in {"ok", RELEASED}:
                self.fail(uuid, "not_enumerated")

    def release(self) -> None:
        """Mark all GPUs as released; drop their readings."""
        self.reset_indexes()
        for uuid in self._devices:
            self.fail(uuid, RELEASED)

    def forget(self, uuid: str) -> None:
        """Remove a GPU that is no longer read."""
        self._devices.pop(uuid, None)

    def devices(self, now: float) -> tuple[Device, ...]:
        """Return every GPU in the order of the last known index, without values that are too old."""
        for device in self._devices.values():
            for group, limit in self.limits.items():
                if group in device.values and now - device.times[group] > limit:
                    device.set(group, None, device.times[group])
        return tuple(
            device.device() for device in sorted(self._devices.values(), key=lambda entry: (entry.index, entry.uuid))
        )


def _typed(values: dict[str, Any]) -> dict[str, Any]:
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
