from __future__ import annotations

from typing import Any

import pytest

from gpugauge.driver.codes import IMPLAUSIBLE
from gpugauge.driver.nvidia.gpm import FIELDS
from gpugauge.driver.nvidia.nvml import Nvml
from tests.driver.nvidia.otherdriver import clocked
from tests.simulator.build import opened

H100 = "gpus: [{model: h100, load: {shape: points, points: [[10, 0], [10.001, 1]]}}]\n"


def read(nvml: Nvml) -> dict[str, Any] | None:
    return nvml.read(0, ["profiling"])[0].get("profiling")


def test_first_reading_has_nothing_to_compare_with() -> None:
    nvml, clock = clocked(H100)
    assert read(nvml) is None
    clock.now = 1.0

    assert (read(nvml) or {})["profiling_seconds"] == 1.0


def test_readings_too_close_are_left_out() -> None:
    nvml, clock = clocked(H100)
    read(nvml)
    seconds = []
    for clock.now in (0.5, 0.95, 1.0, 2.0):
        seconds.append((read(nvml) or {}).get("profiling_seconds"))

    assert seconds == [None, 0.95, None, pytest.approx(1.05)]


def test_means_are_of_the_time_between() -> None:
    nvml, clock = clocked(H100)
    active = []
    for clock.now in (8.0, 9.0, 11.0, 13.0):
        active.append((read(nvml) or {}).get("graphics_active_percent"))

    assert active == [None, 0.0, pytest.approx(50, abs=0.1), 100.0]


def test_one_call_for_all_metrics() -> None:
    nvml, clock = clocked(H100)
    read(nvml)
    nvml.calls.take()
    clock.now = 1.0
    found = read(nvml)
    calls = nvml.calls.take()

    assert len(found or {}) == 13
    assert calls["nvmlGpmMetricsGet"][0] == calls["nvmlGpmSampleGet"][0] == 1


def test_implausible_metric_is_dropped() -> None:
    nvml, clock = clocked(H100 + "faults: [{call: nvmlGpmMetricsGet, value: 4294967295, start: 1, end: 2}]")
    read(nvml)
    clock.now = 1.0

    values, errors = nvml.read(0, ["profiling"])
    assert values == {"profiling": {"profiling_seconds": 1.0}}
    assert errors == dict.fromkeys(FIELDS[1:], IMPLAUSIBLE)


def test_device_without_gpm_is_read_once() -> None:
    nvml = opened("gpus: {model: a100}")

    _, first = nvml.read(0, ["profiling"])
    nvml.calls.take()
    values, second = nvml.read(0, ["profiling"])

    assert set(first.values()) == {"not_supported"}
    assert "sm_active_percent" in first
    assert (values, second) == ({"profiling": {}}, {})
    assert not any("Gpm" in call for call in nvml.calls.take())


def test_library_without_gpm() -> None:
    _, errors = opened("driver: {version: 515.65.01}\ngpus: {model: h100}").read(0, ["profiling"])

    assert set(errors.values()) == {"function_not_found"}


def test_reading_starts_again_after_a_failure() -> None:
    nvml, clock = clocked(H100 + "faults: [{call: nvmlGpmMetricsGet, code: unknown, times: 1}]")
    read(nvml)
    clock.now = 1.0
    failed, errors = nvml.read(0, ["profiling"])
    clock.now = 2.0
    again = read(nvml)
    clock.now = 3.0

    assert failed == {"profiling": {}}
    assert errors["sm_active_percent"] == "unknown"
    assert again is None
    assert (read(nvml) or {})["profiling_seconds"] == 1.0
