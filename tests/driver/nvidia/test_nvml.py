from __future__ import annotations

from typing import Any

import pynvml
import pytest

from gpugauge.driver.api import DEVICE_FIELDS, DriverFacts, Group
from gpugauge.driver.codes import IMPLAUSIBLE, DriverError
from gpugauge.driver.nvidia.calls import CALLS
from gpugauge.driver.nvidia.fieldvalues import FIELD_VALUES
from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.simulator.nvml.library import Library
from tests.drawn import cases
from tests.driver.h100 import EXPECTED
from tests.driver.nvidia.otherdriver import clocked
from tests.simulator.build import Clock, opened

GROUPS: tuple[Group, ...] = ("static", "fast", "profiling", "normal", "slow", "processes", "mig")
FIELDS_OF_CALLS = {field for row in CALLS if row.group != "processes" for field in row.fields}
H100 = "gpus: [{model: h100, count: 2}]\n"


def test_every_reading_of_a_device() -> None:
    nvml, clock = clocked(
        "driver: {version: 580.95.05}\n"
        "gpus: [{model: h100, uuid: GPU-1}]\n"
        "processes: [{pid: 7, gpus: [0], memory: 1GiB, load: 0.5, intensity: 1.0, traffic: 0.5}]\n",
    )
    nvml.read(0, ["profiling"])
    clock.now = 100.0

    values, errors = nvml.read(0, GROUPS)

    assert {field for field, code in errors.items() if code != "not_supported"} == set()
    assert values["static"].pop("serial").isdigit()
    for group, expected in EXPECTED.items():
        assert {field: value for field, value in values[group].items() if field in DEVICE_FIELDS} == expected, group


def test_devices_together_fill_every_field_of_a_device() -> None:
    models = "".join(f"  - {{model: {model}}}\n" for model in ("a100", "b200", "geforce", "h100", "t4"))
    nvml, clock = clocked(f"gpus:\n{models}  - {{model: h100, health: {{nvlink_errors: {{replay: 1}}}}}}\n")
    filled: set[str] = set()
    for clock.now in (0.0, 1.0):
        for index in range(6):
            filled |= {field for group in nvml.read(index, GROUPS)[0].values() for field in group}

    expected = DEVICE_FIELDS | FIELDS_OF_CALLS | {"nvlink_active"} | {row.field for row in FIELD_VALUES}
    expected -= {"xgmi_transmitted_bytes", "xgmi_received_bytes"}  # of AMD
    if not hasattr(pynvml, "c_nvmlFanSpeedInfo_t"):  # nvidia-ml-py 12.560
        expected -= {"fan_rpm"}
    missing = ", ".join(sorted(expected - filled))
    assert not missing, f"no simulated GPU has a value for {missing}: see simulator/nvml and the rows in driver/nvidia"
    assert filled == expected


def test_facts() -> None:
    nvml = opened(H100 + "driver: {version: '550.1', cuda_version: 12040}\n")

    assert nvml.facts() == DriverFacts(2, "550.1", 12040)


def test_facts_without_versions() -> None:
    nvml = opened(H100 + "driver: {missing: ['nvmlSystemGet*']}\n")

    assert nvml.facts() == DriverFacts(2)


def test_impossible_number_of_gpus() -> None:
    """The daemon would ask for each of them."""
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetCount_v2, value: 4294967295}]\n")

    with pytest.raises(DriverError, match="nvmlDeviceGetCount_v2: implausible_value"):
        nvml.facts()


def test_unsupported_field_is_read_once() -> None:
    nvml = opened("gpus: {model: geforce}")

    _, first = nvml.read(0, GROUPS)
    nvml.calls.take()
    _, second = nvml.read(0, GROUPS)

    assert {"serial", "memory_temperature_celsius", "nvlink_active", "mig_mode", "fp64_active_percent"} <= first.keys()
    assert set(first.values()) <= {"not_supported", "function_not_found"}  # the latter: the binding lacks it
    assert second == {}
    assert not nvml.calls.take().keys() & {
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlGpmSampleGet",
    }


def test_field_unsupported_on_one_device_is_read_on_another() -> None:
    nvml = opened("gpus: [{model: geforce}, {model: h100}]")

    nvml.read(0, GROUPS)

    assert "serial" in nvml.read(1, GROUPS)[0]["static"]


def test_older_functions_are_used() -> None:
    nvml = opened(H100 + "driver: {missing: [nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetTemperatureV]}\n")

    values, errors = nvml.read(0, ["normal"])

    assert errors == {}
    assert values["normal"]["temperature_celsius"] == 32
    assert values["normal"]["memory_used_bytes"] == 551 << 20
    assert "memory_reserved_bytes" not in values["normal"]


def test_binding_without_the_function_counts_as_a_library_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(H100)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV", raising=False)

    values, errors = nvml.read(0, ["normal"])

    assert (values["normal"]["temperature_celsius"], errors) == (32, {})


def test_mismatch_of_binding_and_library_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(H100)

    def mismatched(_handle: Any) -> int:
        raise pynvml.NVMLLibraryMismatchError

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", mismatched)

    assert nvml.read(0, ["normal"])[1] == {"power_milliwatts": "function_not_found"}
    assert nvml.read(0, ["normal"])[1] == {}


def test_failed_handle_is_requested_again() -> None:
    nvml = opened(H100 + "faults: [{call: nvmlDeviceGetHandleByIndex_v2, gpu: 1, code: no_permission, times: 1}]\n")

    with pytest.raises(DriverError, match="no_permission"):
        nvml.read(1, ["static"])

    assert nvml.read(1, ["static"])[0]["static"]["index"] == 1


def test_index_without_a_device() -> None:
    with pytest.raises(DriverError, match="invalid_argument"):
        opened(H100).read(2, ["fast"])


@cases("value", [4294967295, 18446744073709551615])
def test_impossible_values_are_errors(value: int) -> None:
    job = "processes: [{pid: 7, gpus: [0], memory: 1GiB}]\n"
    nvml = opened(H100 + job + f"faults: [{{value: {value}}}]\n")

    values, errors = nvml.read(0, ["static", "fast", "normal"])

    assert values["static"].keys() <= {"index", "event_types", "gpm_supported"}
    assert values["fast"] == {}
    # 32 bits of ones are a possible number of bytes, of millijoules and nanoseconds, 64 are not.
    assert all(field.endswith(("_bytes", "_millijoules", "_nanoseconds")) for field in values["normal"])
    assert set(errors.values()) == {IMPLAUSIBLE}


def test_a_list_of_impossible_processes_is_not_empty() -> None:
    job = "processes: [{pid: 7, gpus: [0], memory: 1GiB}]\n"
    nvml = opened(H100 + job + "faults: [{call: '*Processes*', value: 4294967295}]\n")

    assert nvml.read(0, ["processes"]) == ({"processes": {}}, {"processes": IMPLAUSIBLE})


PROCESSES = """
processes:
  - {pid: 9, gpus: [0], memory: null}
  - {pid: 7, gpus: [0], kind: graphics, memory: 1MiB}
  - {pid: 8, gpus: [0], kind: mps, memory: 2MiB}
"""


def listed(nvml: Nvml) -> tuple[list[tuple[int, str, int | None]] | None, dict[str, str]]:
    values, errors = nvml.read(0, ["processes"])
    processes = values["processes"].get("processes")
    return processes and [(p["pid"], p["kind"], p["used_memory_bytes"]) for p in processes], errors


def test_processes_of_all_kinds() -> None:
    expected = [(9, "compute", None), (7, "graphics", 1 << 20), (8, "mps", 2 << 20)]

    assert listed(opened(H100 + PROCESSES)) == (expected, {})


def test_no_processes_is_an_empty_list() -> None:
    assert listed(opened(H100)) == ([], {})


def test_kind_that_is_not_supported_has_no_processes() -> None:
    nvml = opened("gpus: [{model: h100, unsupported: [nvmlDeviceGetGraphics*]}]" + PROCESSES)
    expected = [(9, "compute", None), (8, "mps", 2 << 20)]

    assert [listed(nvml), listed(nvml)] == [(expected, {}), (expected, {})]


def test_kind_that_fails_leaves_no_list() -> None:
    nvml = opened(H100 + PROCESSES + "faults: [{call: nvmlDeviceGetMPS*, code: unknown}]\n")

    assert listed(nvml) == (None, {"processes": "unknown"})


def test_no_kind_supported_is_absent() -> None:
    nvml = opened("gpus: [{model: h100, unsupported: ['*Processes*']}]")

    assert [listed(nvml), listed(nvml)] == [(None, {"processes": "not_supported"}), (None, {})]


def test_call_that_has_worked_is_repeated() -> None:
    """A GPU that supports nothing for a while, as during a reset, has all its values afterwards."""
    nvml, clock = clocked(H100 + PROCESSES + "faults: [{gpu: 0, start: 2, end: 4, code: not_supported}]\n")

    def found() -> set[str]:
        values, _ = nvml.read(0, GROUPS)
        return {field for group in values.values() for field in group} | nvml.samples(0)[0].keys()

    found()
    clock.now = 1.5
    before = found()
    clock.now = 3.0
    meanwhile = found()
    clock.now = 5.0
    found()  # the means of the performance counters begin again
    clock.now = 7.0

    assert {"memory_used_bytes", "ecc_errors", "sm_active_percent", "processes", "gpu"} <= before
    assert meanwhile == set()
    assert found() == before


def test_calls_are_counted_once() -> None:
    nvml = opened(H100)
    nvml.calls.take()
    nvml.read(0, ["normal"])

    number, *seconds = nvml.calls.take()["nvmlDeviceGetClockInfo"]

    assert number == 4
    assert seconds == [0.0, 0.0]  # by the clock
    assert nvml.calls.take() == {}


def test_flag_that_an_old_library_rejects() -> None:
    nvml = opened(H100 + "faults: [{call: nvmlInitWithFlags, code: invalid_argument, times: 1}]\n")

    assert nvml.calls.take()["nvmlInitWithFlags"][0] == 2
    assert nvml.facts().device_count == 2


def test_closed_driver_is_uninitialized() -> None:
    nvml = opened(H100)
    nvml.close()

    with pytest.raises(DriverError, match="uninitialized"):
        nvml.read(0, ["fast"])


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> object:
        raise OSError("no such file")

    monkeypatch.setattr(pynvml, "CDLL", missing)
    use_library(None)

    with pytest.raises(DriverError) as raised:
        Nvml().open()

    assert raised.value.code == "library_not_found"


def test_missing_driver() -> None:
    use_library(Library(Clock().world(H100 + "faults: [{call: nvmlInitWithFlags, code: driver_not_loaded}]\n")))

    with pytest.raises(DriverError) as raised:
        Nvml().open()

    assert raised.value.code == "driver_not_loaded"
