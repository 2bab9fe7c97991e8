from __future__ import annotations

from typing import Any

import pynvml
import pytest

from gpugauge.driver import nvml
from gpugauge.driver.api import Group
from gpugauge.driver.simulated import library
from gpugauge.driver.simulated.library import Library
from gpugauge.driver.simulated.presets import PRESETS
from tests.driver.simulated.build import Clock, opened

GROUPS: tuple[Group, ...] = ("static", "fast", "normal", "slow", "processes")


class Recorder:
    """Notes what the binding looks up."""

    def __init__(self, inner: Library) -> None:
        self.inner = inner
        self.symbols: set[str] = set()

    def __getattr__(self, symbol: str) -> Any:
        self.symbols.add(symbol)
        return getattr(self.inner, symbol)


def test_simulator_has_what_the_code_calls_and_nothing_else() -> None:
    looked_up: set[str] = set()
    models = "".join(f"  - {{model: {model}}}\n" for model in PRESETS)
    old = "driver: {missing: [nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetTemperatureV]}\n"
    for text in (f"gpus:\n{models}", f"{old}gpus:\n{models}"):
        recorder = Recorder(Library(Clock().world(text)))
        nvml.use_library(recorder)
        driver = nvml.Nvml()
        driver.open()
        for index in range(driver.facts().device_count):
            driver.read(index, GROUPS)
        driver.close()
        looked_up |= recorder.symbols

    assert looked_up == library.FUNCTIONS
    assert nvml.FUNCTIONS == library.FUNCTIONS


def test_unknown_field_value_is_not_supported() -> None:
    opened("gpus: {model: h100}")

    (answer,) = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [(9999, 0)])

    assert answer.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_unknown_clock_is_an_invalid_argument() -> None:
    opened("gpus: {model: h100}")

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetClockInfo(pynvml.nvmlDeviceGetHandleByIndex(0), 9)


def test_text_that_does_not_fit() -> None:
    opened(f"gpus: [{{model: h100, name: {'x' * 200}}}]")

    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_nothing_answers_before_init() -> None:
    nvml.use_library(Library(Clock().world("gpus: {model: h100}")))

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_null_handle() -> None:
    opened("gpus: {model: h100}")

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetPowerUsage(pynvml.c_nvmlDevice_t())
