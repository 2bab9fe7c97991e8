from __future__ import annotations

from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE
from gpugauge.driver.nvidia.nvml import use_library, used_library
from gpugauge.simulator.nvml.answers import NOT_SUPPORTED
from tests.drawn import cases
from tests.driver.nvidia.otherdriver import Driver, clocked
from tests.simulator.build import Clock, opened

LAYOUT = """
gpus:
  - model: h100
    mig: [{profile: 1g.10gb}, {profile: 2g.20gb, end: 5}, {profile: 3g.40gb}]
processes: [{pid: 4, gpus: [0], instance: 2, memory: 1GiB, load: 0.5, intensity: 1.0, traffic: 0.4}]
"""


def test_instances_with_memory_and_counters() -> None:
    nvml, clock = clocked(LAYOUT)
    nvml.read(0, ["mig"])
    clock.now = 1.0

    instances = nvml.read(0, ["mig"])[0]["mig"]["mig_instances"]

    assert [(i["profile"], i["gpu_instance_id"], i["sm_count"]) for i in instances] == [
        ("1g.10gb", 7, 16),
        ("2g.20gb", 8, 32),
        ("3g.40gb", 9, 48),
    ]
    assert len({i["uuid"] for i in instances}) == 3
    busy = instances[2]
    del busy["uuid"]
    assert busy == {
        "gpu_instance_id": 9,
        "compute_instance_id": 0,
        "profile": "3g.40gb",
        "sm_count": 48,
        "memory_total_bytes": 40_000 << 20,
        "memory_used_bytes": 1 << 30,
        "memory_reserved_bytes": 25 << 20,
        "sm_active_percent": 50.0,
        "sm_occupancy_percent": 27.5,
        "tensor_active_percent": 30.0,
        "dram_active_percent": 20.0,
    }


def test_processes_name_their_instance() -> None:
    (process,) = opened(LAYOUT).read(0, ["processes"])[0]["processes"]["processes"]

    assert (process["gpu_instance_id"], process["compute_instance_id"]) == (9, 0)


def test_layout_change_adds_static_and_mig_to_a_reading() -> None:
    nvml, clock = clocked(LAYOUT)
    nvml.read(0, ["static", "fast", "mig"])
    nvml.take_events()
    clock.now = 6.0

    values, _ = nvml.read(0, ["fast"])
    (event,) = nvml.take_events()

    assert event == {"type": "mig", "uuid": values["static"]["uuid"]}
    assert [i["gpu_instance_id"] for i in values["mig"]["mig_instances"]] == [7, 9]  # the numbers have a gap
    assert nvml.read(0, ["fast"])[0].keys() == {"fast"}


def test_device_with_mig_has_no_utilization() -> None:
    values, errors = opened(LAYOUT).read(0, ["fast"])

    assert values["fast"] == {}
    assert errors == dict.fromkeys(["utilization_percent", "memory_utilization_percent"], "not_supported")


@cases(("model", "expected"), [("h100", {"mig_instances": []}), ("geforce", {})])
def test_without_mig(model: str, expected: dict[str, object]) -> None:
    nvml = opened(f"gpus: {{model: {model}}}")

    assert [nvml.read(0, ["mig"])[0]["mig"] for _ in range(2)] == [expected, expected]


def test_instances_of_a_device_without_gpm() -> None:
    nvml, clock = clocked("gpus: [{model: a100, mig: [{profile: 7g.80gb}]}]")
    for clock.now in (0.0, 1.0):
        (instance,) = nvml.read(0, ["mig"])[0]["mig"]["mig_instances"]

    assert instance["sm_count"] == 98
    assert "sm_active_percent" not in instance


def test_part_that_fails_is_absent() -> None:
    faults = "faults: [{call: nvmlDeviceGetAttributes_v2, code: no_permission}]"
    values, errors = opened(LAYOUT + faults).read(0, ["mig"])
    instances = values["mig"]["mig_instances"]

    assert ([i["sm_count"] for i in instances], errors) == ([None, None, None], {"mig_values": "no_permission"})
    assert instances[0]["memory_total_bytes"] == 10_000 << 20


def test_impossible_number_of_devices_is_an_error() -> None:
    """The worker would ask for each of them, billions of times."""
    nvml = opened(LAYOUT + "faults: [{call: nvmlDeviceGetMaxMigDeviceCount, value: 5000}]\n")

    assert nvml.read(0, ["mig"]) == ({"mig": {}}, {"mig_instances": IMPLAUSIBLE})


def test_mode_that_changes_without_an_event() -> None:
    """What the GPU supports in the new mode is read, although it did not support it before."""
    nvml, mode = opened("gpus: {model: h100}"), [1]
    rates = used_library().nvmlDeviceGetUtilizationRates  # type: ignore[attr-defined]  # of any library

    def mig_mode(_handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = mode[0]
        return 0

    functions = {
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetUtilizationRates": lambda *arguments: NOT_SUPPORTED if mode[0] else rates(*arguments),
        "nvmlDeviceGetSupportedEventTypes": lambda *_: NOT_SUPPORTED,
    }
    use_library(Driver(**functions))

    def utilization() -> tuple[bool, str | None]:
        values, errors = nvml.read(0, ["fast", "mig"])
        return "utilization_percent" in values["fast"], errors.get("utilization_percent")

    assert [utilization(), utilization()] == [(False, "not_supported"), (False, None)]
    mode[0] = 0
    utilization()
    assert [utilization(), utilization()] == [(True, None)] * 2
    mode[0] = 1
    utilization()
    assert [utilization(), utilization()] == [(False, "not_supported"), (False, None)]


def test_counters_from_before_a_failure_are_not_read_again() -> None:
    clock = Clock()
    nvml, fails = opened(LAYOUT.replace(", end: 5", ""), clock), [False]
    get = used_library().nvmlGpmMigSampleGet  # type: ignore[attr-defined]  # of any library
    use_library(Driver(nvmlGpmMigSampleGet=lambda *a: 999 if fails[0] else get(*a)))

    found = []
    for number, fails[0] in enumerate((False, False, True, False, False, True, True, False, False)):
        clock.now = 5.0 * number
        instances = nvml.read(0, ["mig"])[0]["mig"]["mig_instances"]
        found.append(all("sm_active_percent" in instance for instance in instances))

    assert found == [False, True, False, False, True, False, False, False, True]
