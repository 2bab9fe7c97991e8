from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpugauge.driver.nvidia.nvml import Nvml, use_library, used_library
from gpugauge.simulator.nvml.answers import point
from gpugauge.simulator.worker import service as simulated_service
from tests.drawn import cases
from tests.driver.nvidia.otherdriver import Driver, clocked
from tests.simulator.build import Clock, opened, scenario

TYPES = ["ecc_double_bit", "xid", "mig"]
SICK = """
gpus:
  - {model: h100, uuid: GPU-a}
  - {model: h100, uuid: GPU-b, lost_at: 20, health: {
      xids: [{at: 5, xid: 31}, {at: 10, xid: 94}, {at: 20, xid: 79}], ecc: [{at: 10, kind: uncorrected}]}}
"""


def test_events_since_the_last_read() -> None:
    nvml, clock = clocked(SICK)
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


def test_replies_of_the_worker_have_events() -> None:
    now = [0.0]
    service = simulated_service(lambda: now[0])
    simulation = scenario(SICK).simulation() | {"start": {"monotonic": 0.0, "unix": 0.0}}
    service.answer({"op": "open", "simulate": simulation})
    service.answer({"op": "read", "index": 1, "groups": ["static"]})
    now[0] = 25.0

    reply = service.answer({"op": "read", "index": 1, "groups": ["fast"]})

    assert reply.failed == "gpu_is_lost"
    assert [event.get("xid") for event in reply.events] == [31, None, 94, 79]


FOREIGN = """
driver: {foreign_events: true}
gpus:
  - {model: h100, uuid: GPU-a}
  - {model: h100, uuid: GPU-b, health: {xids: [{at: 5, xid: 31}]}}
"""


@cases(
    "before",
    [
        lambda nvml: nvml.read(1, ["static"]),
        lambda _: None,  # the other GPU has not been opened
        lambda nvml: nvml.samples(1),  # … or opened without reading its uuid
    ],
)
def test_event_of_another_device_has_its_uuid(before: Callable[[Nvml], object]) -> None:
    nvml, clock = clocked(FOREIGN)
    nvml.read(0, ["static"])
    before(nvml)
    clock.now = 6.0
    nvml.read(0, ["fast"])

    assert nvml.take_events() == [{"type": "xid", "xid": 31, "uuid": "GPU-b"}]


@cases("number", [0, 77])
def test_event_of_no_known_device_has_no_uuid(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A null handle, and one that the library itself refuses."""

    def wait(_set: Any, data: Any, _timeout: Any) -> int:
        event = data._obj
        event.eventType, event.eventData = 8, 31
        point(event.device, number)
        return 0

    nvml = opened(FOREIGN)
    nvml.read(0, ["static"])
    library: Any = used_library()
    monkeypatch.setattr(library, "nvmlEventSetWait_v2", wait, raising=False)
    use_library(library)
    nvml.read(0, ["fast"])
    found = nvml.take_events()

    assert found[0]["uuid"] == ""


def test_event_of_a_mig_device_belongs_to_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "gpus: [{model: a100}, {model: a100, uuid: GPU-b, mig: [{profile: 1g.5gb}]}]"
    nvml = opened(text)
    nvml.read(0, ["static"])
    nvml.read(1, ["static"])
    instance = 2 | 1 << 16

    def wait(_set: Any, data: Any, _timeout: Any) -> int:
        event = data._obj
        event.eventType, event.eventData = 8, 31
        point(event.device, instance)
        return 0

    def parent(_handle: Any, out: Any) -> int:
        point(out._obj, 2)
        return 0

    library: Any = used_library()
    monkeypatch.setattr(library, "nvmlEventSetWait_v2", wait, raising=False)
    monkeypatch.setattr(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", parent, raising=False)
    use_library(library)
    nvml.read(0, ["fast"])

    assert nvml.take_events()[0]["uuid"] == "GPU-b"


def test_mig_change_of_another_device_makes_that_device_new() -> None:
    clock = Clock()
    nvml = opened(
        """
driver: {foreign_events: true}
gpus:
  - {model: a100, uuid: GPU-a}
  - {model: a100, uuid: GPU-b, mig: [{profile: 1g.10gb, start: 5}]}
""",
        clock,
    )
    nvml.read(0, ["static"])
    nvml.read(1, ["static", "mig"])
    clock.now = 6.0
    first, _ = nvml.read(0, ["fast"])
    second, _ = nvml.read(1, ["fast"])

    assert ("mig" in first, len(second["mig"]["mig_instances"])) == (False, 1)
    assert {event["uuid"] for event in nvml.take_events()} == {"GPU-b"}


def test_event_types_of_a_device() -> None:
    nvml = opened("gpus: [{model: h100}, {model: geforce}]")

    assert [nvml.read(i, ["static"])[0]["static"]["event_types"] for i in range(2)] == [TYPES, TYPES[:2]]


def test_device_without_events_is_read() -> None:
    nvml = opened("gpus: [{model: h100, unsupported: [nvmlDeviceGetSupportedEventTypes]}]")

    values, errors = nvml.read(0, ["static", "fast"])

    assert values["static"]["event_types"] is None
    assert errors == {}


def test_failed_registration_frees_its_set() -> None:
    nvml = opened("gpus: {model: h100}\nfaults: [{call: nvmlDeviceRegisterEvents, code: no_permission}]")

    assert nvml.read(0, ["static"])[0]["static"]["event_types"] == []
    calls = nvml.calls.take()
    assert calls["nvmlEventSetFree"][0] == calls["nvmlEventSetCreate"][0]


@cases("code", [4, 10, 999])
def test_failed_registration_is_repeated_with_the_identity(code: int) -> None:
    nvml, codes = opened("gpus: {model: h100}"), [code, code]
    register = used_library().nvmlDeviceRegisterEvents  # type: ignore[attr-defined]  # of any library
    use_library(Driver(nvmlDeviceRegisterEvents=lambda *a: codes.pop() if codes else register(*a)))

    types = [nvml.read(0, [group]) for group in ("static", "fast", "static", "static")]

    assert [values["static"]["event_types"] for values, _ in types if "static" in values] == [[], TYPES, TYPES]
    calls = nvml.calls.take()
    assert [calls[f"nvml{name}"][0] for name in ("DeviceRegisterEvents", "EventSetFree")] == [3, 2]


def test_driver_that_reports_without_end() -> None:
    nvml, waits = opened("gpus: {model: h100}"), [0]

    def wait(_set: Any, data: Any, _timeout: Any) -> int:
        waits[0] += 1
        data._obj.eventType, data._obj.eventData = 8, 31
        return 0

    use_library(Driver(nvmlEventSetWait_v2=wait))
    nvml.read(0, ["static", "fast"])

    assert 1 < len(nvml.take_events()) == waits[0] <= 64
