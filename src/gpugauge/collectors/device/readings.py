"""Base class of most device collectors: rows by uuid, rendered again when a GPU has a new reading of their groups."""

from __future__ import annotations

from typing import ClassVar

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.driver.api import Device, Group
from gpugauge.metric import families
from gpugauge.snapshot import Section


class ReadingsCollector(RegisteredCollector):
    """Subclasses set `name`, `metrics`, and the groups of readings that the metrics are made from."""

    groups: ClassVar[tuple[Group, ...]]

    def __init__(self) -> None:
        self._seen: list[tuple[object, ...]] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return the rows of every GPU that is up; the same section until a GPU has a new reading or state."""
        devices = tick.driver.devices
        seen = [
            (d.uuid, d.up, d.reason, d.failures, *(d.generations.get(group, 0) for group in self.groups))
            for d in devices
        ]
        if seen != self._seen:
            self._section, self._seen = self.section(devices), seen
        return self._section

    def section(self, devices: tuple[Device, ...]) -> Section:
        """Return all rows of the GPUs that are up; the subject of a row is the GPU's reading."""
        return Section(self.name, families(self.metrics, [((d.uuid,), d.reading) for d in devices if d.up]))
