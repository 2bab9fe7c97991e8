"""The shape of most device collectors: rows by uuid, read anew when a GPU has a new reading of their groups."""

from __future__ import annotations

from typing import ClassVar

from gpugauge.collectors.base import Tick
from gpugauge.driver.api import Device, Group
from gpugauge.metric import Metric, families
from gpugauge.snapshot import Section


class ByDevice:
    """Subclasses say their name, their rows, and the groups of readings that the rows are made from."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    groups: ClassVar[tuple[Group, ...]]

    def __init__(self) -> None:
        self._seen: list[tuple[object, ...]] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return the rows of every GPU that answers; the same section until one has something new."""
        devices = tick.driver.devices
        seen = [(d.uuid, d.up, d.reason, *(d.generations.get(group, 0) for group in self.groups)) for d in devices]
        if seen != self._seen:
            self._section, self._seen = self.section(devices), seen
        return self._section

    def section(self, devices: tuple[Device, ...]) -> Section:
        """Return all rows of the GPUs that are up, with the reading as the rows' subject."""
        return Section(self.name, families(self.metrics, [((d.uuid,), d.reading) for d in devices if d.up]))
