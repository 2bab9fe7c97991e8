from __future__ import annotations

import pytest

from gpugauge.simulator.device.generation import Generation


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ("470.256.02", {"nvmlDeviceGetMemoryInfo_v2", "nvmlGpmSampleGet", "nvmlDeviceGetTemperatureV"}),
        ("535.183.01", {"nvmlDeviceGetTemperatureV"}),
        ("570.124.06", set()),
    ],
)
def test_functions_by_driver_version(version: str, missing: set[str]) -> None:
    names = {"nvmlDeviceGetMemoryInfo_v2", "nvmlGpmSampleGet", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetUUID"}

    assert {name for name in names if Generation(version).lacks(name)} == missing


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("570.124.06", (None, None)),
        ("575.57.08", ("sw_thermal_slowdown", None)),
        ("580.65.06", ("sw_thermal_slowdown", None)),
        ("580.82.07", (None, "sw_thermal_slowdown")),
    ],
)
def test_field_ids_change_their_meaning(version: str, expected: tuple[str | None, str | None]) -> None:
    generation = Generation(version)

    assert (generation.throttle_reason(251), generation.throttle_reason(269)) == expected


def test_field_ids_by_driver_version() -> None:
    accepted = {
        version: Generation(version).has_field(230) for version in ("470.1.1", "535.1.1", "550.1.1", "580.95.05")
    }

    assert accepted == {"470.1.1": False, "535.1.1": False, "550.1.1": True, "580.95.05": True}
