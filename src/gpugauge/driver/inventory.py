"""What the worker's answers add up to: every card ever seen since the daemon started, under its uuid."""

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


class _Card:
    """The latest values of one card by group, and when they came (monotonic seconds)."""

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
        self._cards: dict[str, _Card] = {}
        self._by_index: dict[int, _Card] = {}

    def reset_indexes(self) -> None:
        """Forget which index means which card: a new worker enumerates anew."""
        self._by_index.clear()

    def uuid(self, index: int) -> str | None:
        """Return the uuid of the card that the present worker enumerates at `index`."""
        card = self._by_index.get(index)
        return card.uuid if card else None

    def apply(self, reply: Reply, now: float) -> None:
        """Take in one answer to a read; an answer about a card that never told its uuid is dropped."""
        if reply.index is None:
            return
        uuid = reply.values.get("static", {}).get("uuid")
        if uuid:
            card = self._cards.setdefault(uuid, _Card(uuid))
            card.index = reply.index
            self._by_index[reply.index] = card
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
        """Mark a card as down; its identity stays, its readings go at once."""
        card = self._cards[uuid]
        card.reason, card.view = reason, None
        for group in list(card.values):
            if group != "static":
                card.set(group, None, card.times.get(group, 0.0))

    def expect_only(self, indexes: set[int]) -> None:
        """Mark the cards that the present worker does not enumerate as gone."""
        present = {self._by_index[i].uuid for i in indexes if i in self._by_index}
        for uuid, card in self._cards.items():
            if uuid not in present and card.reason in {"ok", RELEASED}:
                self.fail(uuid, "not_enumerated")

    def release(self) -> None:
        """Drop all readings, and what is known of any card being up: nobody looks any more."""
        self.reset_indexes()
        for uuid in self._cards:
            self.fail(uuid, RELEASED)

    def forget(self, uuid: str) -> None:
        """Take out a card that is no longer to be read."""
        self._cards.pop(uuid, None)

    def devices(self, now: float) -> tuple[Device, ...]:
        """Return every card in the order of the last known index, without what is too old."""
        for card in self._cards.values():
            for group, limit in self.limits.items():
                if group in card.values and now - card.times[group] > limit:
                    card.set(group, None, card.times[group])
        return tuple(card.device() for card in sorted(self._cards.values(), key=lambda c: (c.index, c.uuid)))


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
