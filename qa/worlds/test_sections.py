"""The section of a collector of readings is another one whenever something that it shows may have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpugauge import catalog
from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, Failure

assert catalog.metrics()  # imports all collectors


def tick(device: Device) -> Tick:
    return Tick(0.0, 0.0, DriverView(True, "ok", devices=(device,)))


@pytest.mark.parametrize("kind", ReadingsCollector.__subclasses__(), ids=lambda kind: kind.name)
def test_each_change_of_a_gpu_gives_another_section(kind: type[ReadingsCollector]) -> None:
    collector, seen = kind(), {str(group): 1 for group in kind.groups}
    device = Device("GPU-a", True, "ok", DeviceReading(), seen)
    changed = [
        replace(device, uuid="GPU-b"),
        replace(device, up=False),
        replace(device, reason="hangs"),
        replace(device, failures=(Failure("ecc", "unknown", 0.0),)),
        *(replace(device, generations={**seen, group: 2}) for group in kind.groups),
    ]
    for each in changed:
        before = collector.collect(tick(device))
        assert collector.collect(tick(replace(device))) is before
        assert collector.collect(tick(each)) is not before
