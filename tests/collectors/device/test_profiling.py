import math
from typing import Any

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.profiling import ProfilingCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, Reply
from gpugauge.metric import LabelValues, Value

UUID = "GPU-a"


class Run:
    """A collector with one window per tick."""

    def __init__(self) -> None:
        self.collector, self.number = ProfilingCollector(), 0

    def window(self, utilization: int = 90, *, up: bool = True, **window: Any) -> dict[str, dict[LabelValues, Value]]:
        self.number += 1
        values = {"fast": {"utilization_percent": utilization}, "profiling": window}
        device = Device(UUID, up, "", DeviceReading(**window) if up else DeviceReading(), {"profiling": self.number})
        tick = Tick(1.0, 1.0, DriverView(True, "ok", devices=(device,)), (Reply(1, "read", 0, values, uuid=UUID),))
        return {f.metric.name: dict(f.samples) for f in self.collector.collect(tick).families}


def test_shares_are_gauges_and_integrals() -> None:
    run = Run()
    run.window(profiling_seconds=1.0, sm_active_percent=50.0, tensor_active_percent=20.0)
    exported = run.window(profiling_seconds=3.0, sm_active_percent=90.0, tensor_active_percent=0.0)

    assert exported["gpu_sm_active_ratio"] == {(UUID,): 0.9}
    assert exported["gpu_tensor_active_ratio"] == {(UUID,): 0}
    assert exported["gpu_sm_active_seconds_total"] == pytest.approx({(UUID,): 3.2})
    assert exported["gpu_tensor_active_seconds_total"] == pytest.approx({(UUID,): 0.2})
    assert exported["gpu_profiled_seconds_total"] == {(UUID,): 4}
    assert exported["gpu_profiling_valid"] == {(UUID,): 1}
    assert "gpu_dram_active_ratio" not in exported


def test_rates_become_bytes() -> None:
    run = Run()
    run.window(profiling_seconds=1.0, sm_active_percent=1.0, pcie_transmit_mib_per_second=2.0)
    exported = run.window(profiling_seconds=2.0, sm_active_percent=1.0, pcie_transmit_mib_per_second=3.0)

    assert exported["gpu_pcie_transmitted_bytes_total"] == {(UUID,): 8 * 1024**2}
    assert "gpu_pcie_received_bytes_total" not in exported


@pytest.mark.parametrize("garbage", [math.nan, 100.5, -1.0])
def test_garbage_has_no_gauge_and_its_window_does_not_count(garbage: float) -> None:
    run = Run()
    run.window(profiling_seconds=1.0, sm_active_percent=50.0, dram_active_percent=10.0)
    exported = run.window(profiling_seconds=1.0, sm_active_percent=80.0, dram_active_percent=garbage)

    assert "gpu_dram_active_ratio" not in exported
    assert exported["gpu_sm_active_ratio"] == {(UUID,): 0.8}
    assert exported["gpu_sm_active_seconds_total"] == {(UUID,): 0.5}
    assert exported["gpu_profiled_seconds_total"] == {(UUID,): 1}


def test_missing_counter_no_longer_blocks_the_others() -> None:
    run = Run()
    run.window(profiling_seconds=1.0, sm_active_percent=50.0, dram_active_percent=10.0)
    for _ in range(12):
        exported = run.window(profiling_seconds=1.0, sm_active_percent=50.0)

    assert exported["gpu_profiled_seconds_total"] == {(UUID,): 4}
    assert "gpu_dram_active_seconds_total" not in exported


def test_zero_counters_of_a_busy_device_are_invalid() -> None:
    run = Run()
    run.window(profiling_seconds=1.0, sm_active_percent=50.0)
    validity = [run.window(profiling_seconds=1.0, sm_active_percent=0.0)["gpu_profiling_valid"] for _ in range(3)]
    exported = run.window(profiling_seconds=1.0, sm_active_percent=0.0)
    again = run.window(profiling_seconds=1.0, sm_active_percent=40.0)

    assert validity == [{(UUID,): 1}, {(UUID,): 1}, {(UUID,): 0}]
    assert "gpu_sm_active_ratio" not in exported
    assert exported["gpu_profiled_seconds_total"] == {(UUID,): 1}
    assert again["gpu_profiling_valid"] == {(UUID,): 1}
    assert again["gpu_profiled_seconds_total"] == {(UUID,): 2}


def test_idle_device_is_valid() -> None:
    run = Run()
    for _ in range(5):
        exported = run.window(utilization=0, profiling_seconds=1.0, sm_active_percent=0.0)

    assert exported["gpu_profiling_valid"] == {(UUID,): 1}
    assert exported["gpu_profiled_seconds_total"] == {(UUID,): 5}


def test_device_without_the_counters_has_no_rows() -> None:
    assert Run().window() == {}


def test_lost_device_keeps_its_counters() -> None:
    run = Run()
    run.window(profiling_seconds=1.0, sm_active_percent=50.0)

    assert run.window(up=False) == {}
    exported = run.window(profiling_seconds=1.0, sm_active_percent=50.0)
    assert exported["gpu_sm_active_seconds_total"] == {(UUID,): 1}


def test_same_section_until_there_is_a_window() -> None:
    collector = ProfilingCollector()
    tick = Tick(1.0, 1.0, DriverView(True, "ok"))

    assert collector.collect(tick) is collector.collect(tick)
