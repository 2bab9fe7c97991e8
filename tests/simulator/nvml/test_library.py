from __future__ import annotations

from typing import Any

import pynvml
import pytest

from gpugauge.driver.api import Group
from gpugauge.driver.nvidia import nvml
from gpugauge.simulator.device.presets import PRESETS
from gpugauge.simulator.nvml import library
from gpugauge.simulator.nvml.library import Library
from tests.simulator.build import Clock, opened

GROUPS: tuple[Group, ...] = ("static", "fast", "profiling", "normal", "slow", "processes", "mig")


class Recorder:
    """Records the functions that the binding resolves."""

    def __init__(self, inner: Library) -> None:
        self.inner = inner
        self.symbols: set[str] = set()

    def __getattr__(self, symbol: str) -> Any:
        self.symbols.add(symbol)
        return getattr(self.inner, symbol)


def test_simulator_has_the_functions_that_the_driver_calls_and_no_others() -> None:
    resolved: set[str] = set()
    models = "".join(f"  - {{model: {model}}}\n" for model in PRESETS)
    mig = "  - {model: h100, mig: [{profile: 1g.10gb}]}\n"
    mig += "  - {model: h100, nvlink_peer: 0, health: {nvlink_errors: {replay: 1}}}\n"
    for driver in ("580.95.05", "470.256.02"):
        clock = Clock()
        recorder = Recorder(Library(clock.world(f"driver: {{version: {driver}}}\ngpus:\n{models}{mig}")))
        nvml.use_library(recorder)
        driver_under_test = nvml.Nvml(lambda clock=clock: clock.now)  # type: ignore[misc] # the default is ours
        driver_under_test.open()
        for clock.now in (0.0, 1.0):
            for index in range(driver_under_test.facts().device_count):
                driver_under_test.read(index, GROUPS)
                driver_under_test.samples(index)
        driver_under_test.close()
        resolved |= recorder.symbols

    absent = {name for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetFanSpeedRPM") if not hasattr(pynvml, name)}
    only_looked_for = {"nvmlDeviceGetConfComputeMemSizeInfo"}  # tells drivers apart, and is never called
    assert resolved - only_looked_for == library.FUNCTIONS - absent  # nvidia-ml-py 12.560 lacks both


def test_everything_is_freed() -> None:
    clock = Clock()
    text = "gpus: [{model: h100}, {model: h100, mig: [{profile: 1g.10gb, end: 5}]}]"
    simulated = Library(clock.world(text))
    nvml.use_library(simulated)
    driver = nvml.Nvml(lambda: clock.now)
    driver.open()
    for clock.now in (0.0, 1.0, 6.0):
        for index in range(2):
            driver.read(index, GROUPS)

    assert simulated.objects._samples or simulated.objects._sets
    driver.close()
    assert (simulated.objects._samples, simulated.objects._sets) == ({}, {})


def test_unknown_field_value_is_not_supported() -> None:
    opened("gpus: {model: h100}")

    answers = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [(9999, 0), (170, 0)])

    assert [a.nvmlReturn for a in answers] == [pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED]


@pytest.mark.parametrize(("model", "count"), [("h100", 18), ("a100", 12), ("geforce", None), ("t4", None)])
def test_number_of_nvlinks(model: str, count: int | None) -> None:
    opened(f"gpus: {{model: {model}}}")

    fields = [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT]
    (answer,) = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), fields)

    assert (None if answer.nvmlReturn else answer.value.uiVal) == count


def test_field_values_have_the_time_of_their_reading() -> None:
    """nvitop computes the rate of a link from two counters and their times."""
    clock = Clock()
    opened("gpus: [{model: h100, load: {shape: constant, level: 1.0}}]", clock)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = []
    for clock.now in (5.0, 7.0):
        fields = [(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link) for link in range(18)]
        found.append(pynvml.nvmlDeviceGetFieldValues(handle, fields))

    earlier, later = found
    assert {b.timestamp - a.timestamp for a, b in zip(earlier, later, strict=True)} == {2_000_000}
    assert len({b.value.ullVal - a.value.ullVal > 0 for a, b in zip(earlier, later, strict=True)}) == 1


def test_count_larger_than_a_number_of_the_driver() -> None:
    opened(f"gpus: [{{model: h100, health: {{pcie_replays: {(1 << 70) + 5}}}}}]")

    (answer,) = pynvml.nvmlDeviceGetFieldValues(
        pynvml.nvmlDeviceGetHandleByIndex(0), [pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER]
    )

    assert (answer.nvmlReturn, answer.value.ullVal) == (0, 5)


def test_unknown_clock_is_an_invalid_argument() -> None:
    opened("gpus: {model: h100}")

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetClockInfo(pynvml.nvmlDeviceGetHandleByIndex(0), 9)


def test_text_that_does_not_fit() -> None:
    opened(f"gpus: [{{model: h100, name: {'x' * 200}}}]")

    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_functions_fail_before_init() -> None:
    nvml.use_library(Library(Clock().world("gpus: {model: h100}")))

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_null_handle() -> None:
    opened("gpus: {model: h100}")

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetPowerUsage(pynvml.c_nvmlDevice_t())
