from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpugauge.driver.codes import DriverError
from gpugauge.driver.nvidia.nvml import Nvml
from tests.simulator.build import Clock, opened

H100 = "gpus: [{model: h100, uuid: GPU-a}, {model: h100, uuid: GPU-b}]\n"


def code(nvml: Nvml, index: int = 0) -> str | None:
    try:
        return nvml.read(index, ["normal"])[1].get("power_milliwatts")
    except DriverError as error:
        return error.code


def test_fault_has_its_time() -> None:
    clock = Clock()
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetPowerUsage, start: 30, end: 60, code: 999}]", clock)
    codes = []
    for clock.now in (29.9, 30.0, 59.9, 60.0):
        codes.append(code(nvml))

    assert codes == [None, "unknown", "unknown", None]


def test_fault_ends_after_its_times() -> None:
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetPowerUsage, times: 2, code: 999}]")

    assert [code(nvml) for _ in range(4)] == ["unknown", "unknown", None, None]


@pytest.mark.parametrize("gpu", ["1", "GPU-b"])
def test_fault_has_its_device(gpu: str) -> None:
    nvml = opened(H100 + f"faults: [{{gpu: {gpu}, code: gpu_is_lost}}]")

    assert (code(nvml, 0), code(nvml, 1)) == (None, "gpu_is_lost")


def test_code_by_any_spelling() -> None:
    for spelling in ("NVML_ERROR_GPU_IS_LOST", "GPU_IS_LOST", "gpu_is_lost", "15"):
        assert code(opened(H100 + f"faults: [{{code: {spelling}}}]")) == "gpu_is_lost"


def test_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetPowerUsage, delay: 2.5}]")

    assert (code(nvml), slept) == (None, [2.5])


def test_value_replaces_the_outputs() -> None:
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetUtilizationRates, value: 7}]")

    values, _ = nvml.read(0, ["fast"])

    assert values["fast"] == {"utilization_percent": 7, "memory_utilization_percent": 7}


def test_value_in_field_values() -> None:
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetFieldValues, value: 99}]")

    assert nvml.read(0, ["normal"])[0]["normal"]["memory_temperature_celsius"] == 99


def test_fault_is_switched_by_a_file(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    nvml = opened(H100 + f"faults: [{{call: nvmlDeviceGetPowerUsage, while_exists: {switch}, code: 999}}]")

    codes = [code(nvml)]
    switch.touch()
    codes.append(code(nvml))
    switch.unlink()
    codes.append(code(nvml))

    assert codes == [None, "unknown", None]
