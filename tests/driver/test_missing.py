from __future__ import annotations

from gpugauge.driver.bus import BusDevice, Down, Known, bus_id, missing, pci_address
from tests.drawn import cases

A, B, C = "0000:10:00.0", "0000:11:00.0", "0000:12:00.0"


def bus(*addresses: str) -> list[BusDevice]:
    return [BusDevice(address, visible=True) for address in addresses]


@cases(
    ("named", "address"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("00010000:01:00.0", "10000:01:00.0"), ("0018:01:00.0", "0018:01:00.0")],
)
def test_addresses(named: str, address: str) -> None:
    assert pci_address(named) == address
    assert pci_address(bus_id(address)) == address


def test_without_a_bus_a_failed_index_is_the_device_that_had_it() -> None:
    known = [Known("GPU-a", 0), Known("GPU-b", 1)]

    found = missing({0: ("GPU-a", "")}, {1: "gpu_is_lost"}, 2, known, None)

    assert found.down == (Down("GPU-b", "gpu_is_lost", 1),)


def test_without_a_bus_a_device_that_was_never_read_has_its_index() -> None:
    found = missing({0: ("GPU-a", "")}, {1: "gpu_is_lost"}, 2, [], None)

    assert found.down == (Down("INDEX-1", "gpu_is_lost", 1),)


def test_devices_without_a_uuid_differ_between_machines() -> None:
    found = [missing({}, {}, 0, [], bus(A), {A}, host).down[0].uuid for host in ("one", "two")]

    assert found == [f"PCI-{bus_id(A)}-one", f"PCI-{bus_id(A)}-two"]


def test_one_failure_and_two_lost_devices_without_a_bus() -> None:
    known = [Known("GPU-a", 0), Known("GPU-b", 1), Known("GPU-c", 2)]

    found = missing({0: ("GPU-a", "")}, {1: "hangs"}, 2, known, None)

    assert {gpu.uuid for gpu in found.down} == {"GPU-b", "GPU-c"}
    assert sorted(gpu.reason for gpu in found.down) == ["hangs", "not_enumerated"]


def test_while_an_index_was_not_tried_only_certain_devices_are_down() -> None:
    found = missing({}, {1: "hangs"}, 3, [Known("GPU-a", 0, A)], bus(A, B, C), {A, B, C})

    assert found.down == (Down(f"PCI-{bus_id(B)}", "hangs", 1, B),)


@cases(
    ("place", "why"),
    [
        (BusDevice(B, "bound to vfio-pci"), "bound to vfio-pci"),
        (BusDevice(B, "bound to no driver"), "bound to no driver"),
        (BusDevice(B, visible=False), "not visible here"),
    ],
)
def test_device_that_another_driver_or_container_has_is_not_lost(place: BusDevice, why: str) -> None:
    known = [Known("GPU-a", 0, A), Known("GPU-b", 1, B, remembered=True)]

    found = missing({0: ("GPU-a", A)}, {}, 1, known, [*bus(A), place], {A})

    assert (found.down, found.elsewhere) == ((), {"GPU-b": why})


def test_device_that_was_never_read_and_is_not_visible_is_not_lost() -> None:
    devices = [*bus(A), BusDevice(B, visible=False), BusDevice(C, "bound to vfio-pci")]

    assert missing({0: ("GPU-a", A)}, {}, 1, [], devices, {A}).down == ()


@cases("devices", [None, bus(A, B)])
def test_device_that_the_driver_denies_and_that_was_never_read_is_not_lost(devices: list[BusDevice] | None) -> None:
    assert missing({0: ("GPU-a", A)}, {1: "no_permission"}, 2, [], devices, {A, B}).down == ()


def test_device_that_the_driver_denies_and_that_was_read_before_is_down() -> None:
    known = [Known("GPU-b", 1, B)]

    found = missing({0: ("GPU-a", A)}, {1: "no_permission"}, 2, known, bus(A, B), {A, B})

    assert found.down == (Down("GPU-b", "no_permission", 1, B),)


def test_device_that_was_plugged_in_after_the_enumeration_is_not_lost() -> None:
    assert missing({0: ("GPU-a", A)}, {}, 1, [], bus(A, B), {A}).down == ()


def test_replaced_device() -> None:
    found = missing({0: ("GPU-new", A)}, {}, 1, [Known("GPU-old", 0, A)], bus(A), {A})

    assert (found.down, found.replaced) == ((), {"GPU-old": "GPU-new"})


def test_removed_device_and_one_that_the_driver_does_not_list() -> None:
    known = [Known("GPU-a", 0, A), Known("GPU-b", 1, B), Known("GPU-c", 2, C)]

    found = missing({0: ("GPU-a", A)}, {}, 1, known, bus(A, C), {A, C})

    assert {gpu.uuid: gpu.reason for gpu in found.down} == {"GPU-b": "removed", "GPU-c": "not_enumerated"}


def test_working_device_without_an_address_makes_no_other_one_lost() -> None:
    assert missing({0: ("GPU-a", "")}, {}, 1, [], bus(A), {A}).down == ()
