from __future__ import annotations

from typing import Any

import pytest

from gpugauge.driver.codes import ENGINES
from gpugauge.driver.frames import PERCENT_UNKNOWN, unpacked
from gpugauge.driver.nvidia.nvml import Nvml, used_library
from tests.drawn import cases
from tests.driver.nvidia.otherdriver import clocked
from tests.simulator.build import Clock, opened

H100 = "gpus: [{model: h100, load: {shape: square, high: 1.0, low: 0.0, period: 2, duty: 0.5}}]\n"


def stamps(nvml: Nvml, engine: str = "gpu") -> list[int]:
    return [stamp for stamp, _ in unpacked(nvml.samples(0)[0][engine])]


def test_ring_is_drained_once() -> None:
    nvml, clock = clocked(H100)

    first = stamps(nvml)
    clock.now = 1.0
    second = stamps(nvml)
    third = stamps(nvml)

    assert len(first) == 72
    assert len(second) in {5, 6}
    assert min(second) > max(first)
    assert third == []


def test_samples_add_up_to_the_load() -> None:
    nvml, clock = clocked(H100)
    nvml.samples(0)
    busy = 0.0
    last = 0
    for second in range(1, 61):
        clock.now = float(second)
        for stamp, percent in unpacked(nvml.samples(0)[0]["gpu"]):
            busy += (stamp - last) * percent / 1e8 if last else 0.0
            last = stamp

    assert busy == pytest.approx(30.0, rel=0.02)


def test_every_engine_has_its_ring() -> None:
    nvml, clock = clocked(
        "gpus: {model: h100}\nprocesses: [{pid: 1, gpus: [0], load: 0.8, traffic: 0.5, engines: {decoder: 0.25}}]",
    )
    clock.now = 30.0

    samples, errors = nvml.samples(0)

    assert errors == {}
    assert samples.keys() == {*ENGINES, "process"}
    assert {engine: unpacked(samples[engine])[-1][1] for engine in ENGINES} == {
        "gpu": 80,
        "memory": 40,
        "encoder": 0,
        "decoder": 20,
        "jpeg": 0,
        "ofa": 0,
    }


@cases("driver", ["470.256.02", "580.95.05"])
def test_engine_without_a_ring_is_read_once(driver: str) -> None:
    nvml = opened(f"driver: {{version: {driver}}}\ngpus: [{{model: a100, lacks: [jpeg]}}]")

    samples, first = nvml.samples(0)
    _, second = nvml.samples(0)

    assert "jpeg" not in samples
    assert "ofa" in samples or driver < "5"
    assert first["samples_jpeg"] == ("invalid_argument" if driver < "5" else "not_supported")
    assert second == {}


def test_mig_leaves_two_rings() -> None:
    samples, errors = opened("gpus: [{model: a100, mig: [{profile: 1g.10gb}]}]").samples(0)

    assert samples.keys() == {"jpeg", "ofa"}
    assert set(errors.values()) == {"not_supported"}


def test_dry_ring_is_empty() -> None:
    nvml, clock = clocked("gpus: [{model: h100, ring: {dry_when_idle: true}}]")
    for clock.now in (0.0, 10.0, 20.0, 40.0):
        assert nvml.samples(0)[0]["gpu"] == ""


def test_samples_of_an_idle_ring_are_not_repeated() -> None:
    clock = Clock()
    nvml = opened(
        "gpus: [{model: h100, ring: {dry_when_idle: true}}]\nprocesses: [{pid: 1, gpus: [0], load: 1.0, end: 5}]", clock
    )
    found = []
    for second in range(60):
        clock.now = float(second)
        found += stamps(nvml)

    assert len(found) == len(set(found)) > 20


def test_clock_that_is_set_back() -> None:
    nvml, clock = clocked("gpus: [{model: h100, ring: {clock_steps: [[10, -3600]]}}]")
    newest = {}
    for second in range(60):
        clock.now = float(second)
        newest[second] = max(stamps(nvml), default=0)

    assert newest[9] > 0
    assert newest[12] == 0  # all samples have earlier times
    assert 0 < newest[59] < newest[9]


@cases("back", [5, 3600])
def test_processes_after_a_clock_that_is_set_back(back: int) -> None:
    gpu = f"gpus: [{{model: h100, ring: {{clock_steps: [[10, -{back}]]}}}}]"
    nvml, clock = clocked(f"{gpu}\nprocesses: [{{pid: 7, gpus: [0], load: 0.5}}]")
    with_rows = []
    for second in range(60):
        clock.now = float(second)
        if nvml.samples(0)[0]["process"]:
            with_rows.append(second)

    assert with_rows[:8] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert with_rows[-1] == 59
    assert len(with_rows) >= 60 - 2 - 17


def test_an_idle_gpu_has_no_rows_again_after_a_reading_of_the_whole_ring() -> None:
    nvml, clock = clocked("gpus: {model: h100}\nprocesses: [{pid: 7, gpus: [0], load: 0.5, end: 20}]")
    with_rows = []
    for second in range(90):
        clock.now = float(second)
        if nvml.samples(0)[0]["process"]:
            with_rows.append(second)

    assert with_rows[-1] <= 21


def test_garbage_is_passed_on_and_does_not_stop_the_ring() -> None:
    fault = "faults: [{call: nvmlDeviceGetSamples, member: timeStamp, value: 18446744073709551615, end: 1}]"
    nvml, clock = clocked(H100 + fault)
    assert set(stamps(nvml)) == {18446744073709551615}
    found = []
    for second in range(1, 40):
        clock.now = float(second)
        found += stamps(nvml)

    assert len(found) > 100


def test_processes_are_means_since_the_last_drain() -> None:
    job = "processes: [{pid: 7, gpus: [0], load: 0.5, traffic: 0.5}, {pid: 8, gpus: [0]}]"
    nvml, clock = clocked("gpus: {model: h100}\n" + job)
    clock.now = 20.0
    first = nvml.samples(0)[0]["process"]  # a mean over the whole ring
    clock.now = 25.0
    second = nvml.samples(0)[0]["process"]

    assert first == []
    assert second == [[864_025_000_000, 7, 50, 25, 0, 0]]


def test_no_process_is_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened("gpus: {model: h100}").samples(0)[0]["process"] == []
    nvml = opened("gpus: {model: h100}")

    def success(_handle: object, _array: object, count: Any, _time: object) -> int:
        count._obj.value = 0
        return 0  # success, also for the capacity

    monkeypatch.setattr(used_library(), "nvmlDeviceGetProcessUtilization", success, raising=False)

    assert nvml.samples(0)[0]["process"] == []
    assert nvml.samples(0)[1] == {}


def library(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, samples: Any) -> None:
    """Replace nvmlDeviceGetSamples of the current library, which must not have been called yet."""
    assert "nvmlDeviceGetSamples" not in nvml.calls.take()
    monkeypatch.setattr(used_library(), "nvmlDeviceGetSamples", samples, raising=False)


def test_rings_are_sized_once() -> None:
    nvml, clock = clocked(H100)
    nvml.samples(0)
    nvml.calls.take()
    clock.now = 2.0

    nvml.samples(0)
    calls = nvml.calls.take()

    assert calls["nvmlDeviceGetSamples"][0] == len(ENGINES)
    assert calls["nvmlDeviceGetProcessUtilization"][0] == 1


def test_ring_that_grew_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, capacities = opened(H100), [2]

    def samples(_handle: object, kind: int, _since: object, value_type: Any, count: Any, array: Any) -> int:
        capacity = capacities[0] if kind == 1 else 1
        if array is not None and count._obj.value < capacity:
            return 7  # insufficient size
        value_type._obj.value, count._obj.value = 1, capacity
        for number, entry in enumerate(array[: count._obj.value] if array is not None else (), 1):
            entry.timeStamp, entry.sampleValue.uiVal = number, 10 * number
        return 0

    library(nvml, monkeypatch, samples)
    first = unpacked(nvml.samples(0)[0]["gpu"])
    capacities[0] = 4
    second, errors = nvml.samples(0)

    assert first == [(1, 10), (2, 20)]
    assert unpacked(second["gpu"]) == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert errors == {}


def test_library_that_calls_the_missing_buffer_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most functions of NVML report the room that they need in this way."""
    nvml = opened(H100)

    def samples(_handle: object, _kind: int, _since: object, value_type: Any, count: Any, array: Any) -> int:
        room = 0 if array is None else count._obj.value
        value_type._obj.value, count._obj.value = 1, 3
        if room < 3:
            return 7  # insufficient size
        for number, entry in enumerate(array[:3], 1):
            entry.timeStamp, entry.sampleValue.uiVal = number, 10 * number
        return 0

    library(nvml, monkeypatch, samples)
    found, errors = nvml.samples(0)

    assert errors == {}
    assert unpacked(found["gpu"]) == [(1, 10), (2, 20), (3, 30)]


def test_ring_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(H100)

    def samples(_handle: object, _kind: int, _since: object, value_type: Any, count: Any, array: Any) -> int:
        value_type._obj.value, count._obj.value = 0, 3
        for number, entry in enumerate(array[:3] if array is not None else ()):
            entry.timeStamp, entry.sampleValue.dVal = number, (37.5, 1e300, float("nan"))[number]
        return 0

    library(nvml, monkeypatch, samples)

    assert unpacked(nvml.samples(0)[0]["gpu"]) == [(0, 37), (1, PERCENT_UNKNOWN), (2, PERCENT_UNKNOWN)]


def test_library_whose_rings_have_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(H100)
    library(nvml, monkeypatch, lambda *_: 0)

    assert nvml.samples(0) == (dict.fromkeys(ENGINES, "") | {"process": []}, {})


def test_soft_error_costs_one_engine_once() -> None:
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetSamples, code: unknown, times: 1}]")

    samples, errors = nvml.samples(0)

    assert errors == {"samples_gpu": "unknown"}
    assert "gpu" not in samples
    assert "memory" in samples
    assert len(stamps(nvml)) == 72
