"""The ledger of time in the simulated library, and the functions that nvitop-exporter finds there."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pynvml
import pytest

from gpugauge.driver.nvidia.nvml import use_library
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library
from gpugauge.simulator.scenario.load import parse_scenario
from qa.bench import ledger
from qa.bench.nodes import scenario
from qa.bench.peer import PeerLibrary


class Slow:
    """A library with a function that works, and one that waits."""

    def work(self, seconds: float) -> int:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return 3

    def wait(self, seconds: float) -> int:
        time.sleep(seconds)
        return 0


def test_work_in_the_library_is_added_up(tmp_path: Path) -> None:
    library = ledger.Ledger(Slow(), tmp_path)

    codes = [library.work(0.01), library.wait(0.05), library.work(0.02)]

    found = ledger.read(tmp_path)[os.getpid()]
    assert codes == [3, 0, 3]
    assert found.calls == 3
    assert found.seconds >= 0.03


def test_waiting_is_no_work(tmp_path: Path) -> None:
    library = ledger.Ledger(Slow(), tmp_path)
    library.work(0.01)
    before = ledger.read(tmp_path)[os.getpid()]

    library.wait(0.3)

    found = ledger.read(tmp_path)[os.getpid()].since(before)
    assert found.calls == 1
    assert found.seconds < 0.3


def test_unknown_function_raises(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        ledger.Ledger(Slow(), tmp_path).other  # noqa: B018  (looked up, as the binding does)


def test_library_is_wrapped_if_the_environment_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Slow()
    assert ledger.kept(library) is library

    monkeypatch.setenv(ledger.VARIABLE, str(tmp_path))

    assert isinstance(ledger.kept(library), ledger.Ledger)


def test_price_leaves_no_file(tmp_path: Path) -> None:
    price = ledger.price(tmp_path)

    assert price.inside + price.beside > 0
    assert ledger.read(tmp_path) == {}


def answers(function: str, *arguments: object) -> bool:
    try:
        getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError:
        return False
    return True


def test_only_the_fan_is_not_supported_for_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of nvitop-exporter on an H100 SXM, which has no fan."""
    now = [100.0]
    simulation = parse_scenario(scenario(1, [41, 42, 43]), "test.yaml", "test").simulation()
    simulation["start"] = {"monotonic": 0.0, "unix": 1_790_000_000.0}
    use_library(PeerLibrary(Library(World(simulation, lambda: now[0]))))
    monkeypatch.setattr(time, "time_ns", lambda: round((1_790_000_000 + now[0]) * 1e9))
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)

    used = pynvml.nvmlDeviceGetProcessUtilization(device, time.time_ns() // 1000 - 1_000_000)
    asked: list[tuple[str, Sequence[object]]] = [
        ("nvmlDeviceIsMigDeviceHandle", []),
        ("nvmlDeviceGetUtilizationRates", []),
        ("nvmlDeviceGetEncoderUtilization", []),
        ("nvmlDeviceGetDecoderUtilization", []),
        ("nvmlDeviceGetMemoryInfo", [pynvml.nvmlMemory_v2]),
        *(("nvmlDeviceGetClockInfo", [domain]) for domain in range(4)),
        ("nvmlDeviceGetPowerUsage", []),
        ("nvmlDeviceGetPowerManagementLimit", []),
        ("nvmlDeviceGetTemperatureV", [pynvml.NVML_TEMPERATURE_GPU]),
        ("nvmlDeviceGetFanSpeed", []),
        ("nvmlDeviceGetPcieThroughput", [pynvml.NVML_PCIE_UTIL_TX_BYTES]),
        ("nvmlDeviceGetComputeRunningProcesses", []),
        ("nvmlDeviceGetGraphicsRunningProcesses", []),
    ]
    refused = [name for name, arguments in asked if not answers(name, device, *arguments)]
    (links,) = pynvml.nvmlDeviceGetFieldValues(device, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])
    sent = [(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link) for link in range(links.value.uiVal)]

    assert refused == ["nvmlDeviceGetFanSpeed"]
    assert sorted(sample.pid for sample in used) == [41, 42, 43]
    assert [value.nvmlReturn for value in pynvml.nvmlDeviceGetFieldValues(device, sent)] == [0] * 18
