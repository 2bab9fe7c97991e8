import random
from dataclasses import asdict, replace
from typing import Any

from gpugauge.driver.api import Device, DeviceReading, ProcessReading, Reply
from gpugauge.driver.inventory import Inventory
from tests.drawn import seeds


def inventory() -> Inventory:
    return Inventory({"fast": 7, "normal": 15})


def reply(index: int, uuid: str = "", failed: str | None = None, **fast: Any) -> Reply:
    values: dict[str, dict[str, Any]] = {"fast": fast}
    if uuid:
        values["static"] = {"uuid": uuid, "index": index, "name": "H100"}
    return Reply(1, "read", index, values if failed is None else {}, failed=failed)


def only(devices: tuple[Device, ...]) -> Device:
    assert len(devices) == 1
    return devices[0]


def test_groups_are_merged_under_the_uuid() -> None:
    devices = inventory()

    devices.apply(reply(0, "GPU-a", utilization_percent=40), 1.0)
    devices.apply(Reply(2, "read", 0, {"normal": {"power_milliwatts": 1000}}), 1.0)
    device = only(devices.devices(2.0))

    assert (device.uuid, device.up, device.reading.name) == ("GPU-a", True, "H100")
    assert (device.reading.utilization_percent, device.reading.power_milliwatts) == (40, 1000)


def test_new_reading_replaces_its_group_so_that_a_failed_field_disappears() -> None:
    devices = inventory()

    devices.apply(reply(0, "GPU-a", utilization_percent=40, memory_utilization_percent=3), 1.0)
    devices.apply(reply(0, utilization_percent=41), 2.0)
    reading = only(devices.devices(2.0)).reading

    assert (reading.utilization_percent, reading.memory_utilization_percent) == (41, None)


def test_old_values_are_dropped_and_the_device_is_down_then() -> None:
    devices = inventory()
    devices.apply(reply(0, "GPU-a", utilization_percent=40), 1.0)

    device = only(devices.devices(8.1))

    assert (device.up, device.reason, device.reading.utilization_percent) == (False, "stale", None)
    assert device.reading.name == "H100"


@seeds(range(20))
def test_a_lost_gpu_has_no_index_that_another_one_has_now(seed: int) -> None:
    """The driver of each new worker counts those GPUs that are left."""
    devices, draw = inventory(), random.Random(seed)
    left = [f"GPU-{number}" for number in range(draw.randint(2, 8))]
    last: dict[str, int] = {}
    for worker in range(1, draw.randint(3, 5)):
        devices.begin(worker)
        now = {uuid: index for index, uuid in enumerate(left)}
        for uuid, index in now.items():
            devices.apply(reply(index, uuid, utilization_percent=1), worker)
        last = {uuid: index for uuid, index in last.items() if index not in now.values()} | now

        found = {device.uuid: device.reading.index for device in devices.devices(worker) if device.reading.index >= 0}
        assert found == last
        left = draw.sample(left, draw.randint(1, len(left)))


def test_second_gpu_with_the_same_uuid_is_down() -> None:
    """Its values would otherwise be mixed with those of the first."""
    devices = inventory()
    devices.apply(reply(0, "GPU-a", utilization_percent=40), 1.0)
    devices.apply(reply(1, "GPU-a", utilization_percent=90), 1.0)
    devices.settle(2, None)
    devices.apply(reply(0, "GPU-a", utilization_percent=41), 2.0)

    first, second = devices.devices(2.0)

    assert (first.uuid, first.up, first.reading.index, first.reading.utilization_percent) == ("GPU-a", True, 0, 41)
    assert (second.uuid, second.up, second.reason, second.reading.index) == ("INDEX-1", False, "no_uuid", 1)
    assert devices.uuid(1) is None


def test_lost_device_keeps_its_identity_and_comes_back() -> None:
    devices = inventory()
    devices.apply(reply(0, "GPU-a", utilization_percent=40), 1.0)

    states, lost = [], "gpu_is_lost"
    codes = {2: lost, 4: lost, 5: "unknown", 6: lost}
    # Nothing is read twice in a row; then it must be read three times, and for ten seconds.
    for second, code in ((n, codes.get(n)) for n in (*range(2, 10), 16, 17, 18)):
        values: dict[str, Any] = {} if code else {"utilization_percent": second}
        devices.apply(reply(0, failed=code, **values), float(second))
        shown = only(devices.devices(float(second)))
        states.append("up" if shown.up else shown.reason)
        assert (shown.reading.utilization_percent is not None) is shown.up
        assert shown.reading.name == "H100"

    assert states == ["up"] * 3 + ["gpu_is_lost"] * 6 + ["up"] * 2


def test_new_worker_may_renumber_the_devices() -> None:
    devices = inventory()
    devices.apply(reply(0, "GPU-a", utilization_percent=1), 1.0)
    devices.apply(reply(1, "GPU-b", utilization_percent=2), 1.0)

    devices.begin(2)
    devices.apply(reply(0, "GPU-b", utilization_percent=3), 2.0)
    devices.settle(1, None)

    state = {d.uuid: (d.up, d.reading.utilization_percent) for d in devices.devices(2.0)}
    assert state == {"GPU-a": (False, None), "GPU-b": (True, 3)}


def test_reply_about_an_unknown_device_is_dropped() -> None:
    devices = inventory()

    devices.apply(reply(3, utilization_percent=1), 1.0)

    assert devices.devices(1.0) == ()


def test_processes_and_undeclared_fields() -> None:
    devices = inventory()
    listed = [{"pid": 7, "kind": "compute", "used_memory_bytes": 5, "gpu_instance_id": None}]
    devices.apply(reply(0, "GPU-a", field_of_tomorrow=1), 1.0)
    devices.apply(Reply(2, "read", 0, {"processes": {"processes": listed}}), 1.0)

    assert only(devices.devices(1.0)).reading.processes == (ProcessReading(7, "compute", 5),)


def test_reading_equals_one_from_the_constructor() -> None:
    values: dict[str, Any] = {"index": 3, "uuid": "GPU-a", "power_milliwatts": 5}

    reading = DeviceReading.of([{"index": 3, "uuid": "GPU-a"}, {"power_milliwatts": 5}])

    assert reading == DeviceReading(**values)
    assert asdict(reading) == asdict(DeviceReading(**values))
    assert replace(reading, index=4) == DeviceReading(**values | {"index": 4})


def test_unchanged_device_is_the_same_object() -> None:
    devices = inventory()
    devices.apply(reply(0, "GPU-a", utilization_percent=40), 1.0)

    assert devices.devices(1.0)[0] is devices.devices(2.0)[0]
