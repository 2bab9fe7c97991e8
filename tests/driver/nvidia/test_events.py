from __future__ import annotations

import pytest

from gpugauge.driver.api import DriverError
from gpugauge.simulator.worker import service as simulated_service
from tests.simulator.build import Clock, opened, scenario

SICK = """
gpus:
  - {model: h100, uuid: GPU-a}
  - {model: h100, uuid: GPU-b, lost_at: 20, health: {
      xids: [{at: 5, xid: 31}, {at: 10, xid: 94}, {at: 20, xid: 79}], ecc: [{at: 10, kind: uncorrected}]}}
"""


def test_events_since_the_last_read() -> None:
    clock = Clock()
    nvml = opened(SICK, clock)
    clock.now = 6.0
    nvml.read(1, ["static"])  # earlier events are never reported
    clock.now = 12.0
    nvml.read(0, ["static"])
    neighbour = nvml.take_events()
    nvml.read(1, ["fast"])

    assert neighbour == []
    assert nvml.take_events() == [
        {"type": "ecc_double_bit", "uuid": "GPU-b"},
        {"type": "xid", "xid": 94, "uuid": "GPU-b"},
    ]
    nvml.read(1, ["fast"])
    assert nvml.take_events() == []


def test_events_come_with_the_read_that_fails() -> None:
    clock = Clock()
    nvml = opened(SICK, clock)
    nvml.read(1, ["static"])
    clock.now = 25.0
    with pytest.raises(DriverError, match="gpu_is_lost"):
        nvml.read(1, ["fast"])

    assert nvml.take_events()[-1] == {"type": "xid", "xid": 79, "uuid": "GPU-b"}


def test_replies_of_the_worker_have_events() -> None:
    now = [0.0]
    service = simulated_service(lambda: now[0])
    simulation = scenario(SICK).simulation() | {"start": {"monotonic": 0.0, "unix": 0.0}}
    service.answer({"op": "open", "simulate": simulation})
    service.answer({"op": "read", "index": 1, "groups": ["static"]})
    now[0] = 25.0

    reply = service.answer({"op": "read", "index": 1, "groups": ["fast"]})

    assert reply.failed == 15
    assert [event.get("xid") for event in reply.events] == [31, None, 94, 79]


def test_event_types_of_a_device() -> None:
    nvml = opened("gpus: [{model: h100}, {model: geforce}]")

    assert [nvml.read(i, ["static"])[0]["static"]["event_types"] for i in range(2)] == [0x10A, 0xA]


def test_device_without_events_is_read() -> None:
    nvml = opened("gpus: [{model: h100, unsupported: [nvmlDeviceGetSupportedEventTypes]}]")

    values, errors = nvml.read(0, ["static", "fast"])

    assert values["static"]["event_types"] == 0
    assert errors == {}


def test_failed_registration_frees_its_set() -> None:
    nvml = opened("gpus: {model: h100}\nfaults: [{call: nvmlDeviceRegisterEvents, code: no_permission}]")

    assert nvml.read(0, ["static"])[0]["static"]["event_types"] == 0
    assert nvml.take_calls()["nvmlEventSetFree"][0] == 1


def test_driver_that_reports_without_end() -> None:
    nvml = opened("gpus: {model: h100}\nfaults: [{call: nvmlEventSetWait_v2, value: 8}]")
    clock = Clock()
    clock.now = 1.0
    nvml.read(0, ["fast"])

    assert len(nvml.take_events()) <= 64
