from __future__ import annotations

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView
from gpugauge.metric import LabelValues, Value


def values(*devices: Device) -> dict[str, dict[LabelValues, Value]]:
    section = DeviceCollector().collect(Tick(1.7e9, 1.0, DriverView(True, "ok", devices=devices)))
    return {family.metric.name: dict(family.samples) for family in section.families}


@pytest.mark.parametrize(
    ("reason", "exported"),
    [
        ("hangs", "hangs"),
        ("not_enumerated", "not_enumerated"),
        ("gpu_is_lost", "gpu_is_lost"),
        ("code_77", "code_77"),
        ("?", "unknown"),
    ],
)
def test_reason_of_a_device_that_is_down(reason: str, exported: str) -> None:
    lost = Device("PCI-00000000:10:00.0", up=False, reason=reason, reading=DeviceReading(), generations={})

    found = values(lost, Device("GPU-a", True, "ok", DeviceReading(index=0), {}))

    assert found["gpu_up"] == {("PCI-00000000:10:00.0",): 0, ("GPU-a",): 1}
    assert found["gpu_down_reason"] == {("PCI-00000000:10:00.0", exported): 1}


def test_released_device_has_no_reason_and_an_unknown_index_is_empty() -> None:
    found = values(Device("GPU-a", up=False, reason="released", reading=DeviceReading(), generations={}))

    assert "gpu_up" not in found
    assert "gpu_down_reason" not in found
    ((labels, _),) = found["gpu_info"].items()
    assert labels[1] == ""
