from __future__ import annotations

import pytest

from gpugauge.simulator.device.world import Generation

SINCE = """510 GetMemoryInfo_v2 GetNumGpuCores 520 GpmSampleGet GpmMigSampleGet 530 GetNumaNodeId
535 GetCurrentClocksEventReasons GetSupportedClocksEventReasons GetJpgUtilization GetOfaUtilization
565 GetFanSpeedRPM 570 GetTemperatureV"""


def test_functions_by_driver_version() -> None:
    since = 0
    for word in SINCE.split():
        since = int(word) if word.isdigit() else since
        function = f"nvml{word}" if "Gpm" in word else f"nvmlDevice{word}"
        assert word.isdigit() or [Generation(f"{n}.1").lacks(function) for n in (since - 1, since)] == [True, False]
    assert not Generation("470.256.02").lacks("nvmlDeviceGetUUID")


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
    last = {"460.1": 160, "470.1": 160, "515.1": 169, "525.1": 172, "535.1": 200, "550.1": 234, "570.1": 268}
    for version, number in (last | {"580.65": 274, "580.82": 307}).items():
        assert [Generation(version).has_field(field) for field in (number, number + 1)] == [True, False], version
