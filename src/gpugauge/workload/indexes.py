"""The device that an index meant at a time: after a GPU is lost, the others may have other indexes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_MAX_CHANGES = 64


class Indexes:
    """What is known of the indexes, by names such as `index:0`, or `index:0.2` for an instance of its GPU."""

    def __init__(self) -> None:
        self.changes = 0
        self._whole = False  # whether the first indexes are those from before, too
        self._known: deque[tuple[float, Mapping[str, str]]] = deque(maxlen=_MAX_CHANGES)  # since a Unix time

    def note(self, now: float, uuids: Mapping[str, str], *, whole: bool) -> None:
        """Note the uuids of all devices that have an index. `whole` is false if a lost GPU has none."""
        if uuids and (not self._known or self._known[-1][1] != uuids):
            if not self._known:
                self._whole = whole
            self._known.append((now, dict(uuids)))
            self.changes += 1

    def name(self, name: str, at: float) -> str:
        """Return the uuid of the device that had the index at a time, empty if unknown; before any device, the name."""
        if not self._known:
            return name
        earlier = [uuids for since, uuids in self._known if since <= at]
        if not earlier and not self._whole:
            return ""
        return (earlier[-1] if earlier else self._known[0][1]).get(name, "")
