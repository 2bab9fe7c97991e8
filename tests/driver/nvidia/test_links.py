"""NVLinks: what is impossible, and links that a GPU does not have; qa/worlds/test_nvlinks.py draws topologies."""

from __future__ import annotations

from gpugauge.collectors.device.links import METRICS
from gpugauge.driver.api import DeviceReading
from gpugauge.driver.codes import IMPLAUSIBLE
from tests.drawn import cases
from tests.driver.nvidia.otherdriver import clocked
from tests.simulator.build import opened


@cases("count", [37, 40_000, 0xFFFFFFFF])
def test_an_impossible_count_is_ignored(count: int) -> None:
    nvml = opened(f"gpus: {{model: a100}}\nfaults: [{{call: nvmlDeviceGetFieldValues, value: {count}}}]")

    assert len(nvml.read(0, ["slow"])[0]["slow"]["nvlink_active"]) == 12


def test_an_impossible_state_is_absent() -> None:
    nvml = opened("gpus: {model: a100}\nfaults: [{call: nvmlDeviceGetNvLinkState, value: 255}]")

    values, errors = nvml.read(0, ["slow"])

    assert "nvlink_active" not in values["slow"]
    assert errors["nvlink_active"] == IMPLAUSIBLE


@cases("speed", [1, 25781, 26562, 53125])
def test_the_speed_is_exact(speed: int) -> None:
    (metric,) = (m for m in METRICS if m.name == "gpu_nvlink_speed_bytes")

    exported = metric.read(DeviceReading.of([{"nvlink_speed_megabytes_per_second": {"0": speed}}]))

    assert exported == {"0": speed * 10**6}


def test_a_gpu_without_links_has_no_value_of_them() -> None:
    nvml, clock = clocked("gpus: [{model: h100, load: 0.9, nvlinks: 0, nvlinks_absent: 18}]")
    found = set()
    for clock.now in (0.0, 2.0):
        values, _ = nvml.read(0, ["profiling", "normal", "slow"])
        found |= {name for group in values.values() for name in group}

    assert "sm_active_percent" in found
    assert not {name for name in found if name.startswith("nvlink_")}


def test_links_that_a_gpu_does_not_have_are_absent() -> None:
    outage = "health: {nvlink_outages: [{link: 5, start: 10, end: 40, silent: true}]}"
    nvml, clock = clocked(f"gpus: [{{model: h100, nvlinks: 12, nvlinks_absent: 6, {outage}}}]")
    found = []
    for clock.now in (0.0, 20.0, 50.0):
        values = nvml.read(0, ["slow"])[0]["slow"]
        speeds = values["nvlink_speed_megabytes_per_second"]
        found.append((len(values["nvlink_active"]), values["nvlink_active"]["5"], len(speeds), speeds.get("5")))

    assert found == [(12, True, 12, 26562), (12, False, 11, None), (12, True, 12, 26562)]
