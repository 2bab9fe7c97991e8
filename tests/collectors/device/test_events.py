from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.collectors.kmsg import KernelLog
from gpugauge.driver.api import Device, DeviceReading, DriverView, Reply
from gpugauge.driver.nvidia.bus import parse
from gpugauge.driver.vendors.amd import AMD
from gpugauge.metric import LabelValues, Value

Values = dict[str, dict[LabelValues, Value]]
LOST = b"2,17,90001,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


def device(uuid: str = "GPU-a", bus: str = "00000000:3B:00.0", *, up: bool = True, events: Any = ("xid",)) -> Device:
    reading = DeviceReading(pci_bus_id=bus, event_types=events if up else None)
    return Device(uuid, up, "ok" if up else "gpu_is_lost", reading, {})


def event(**event: Any) -> Reply:
    return Reply(1, "read", 0, events=[event], uuid="GPU-a")


def values(
    collector: EventsCollector, now: float, *replies: Reply, devices: tuple[Device, ...] = (device(),)
) -> Values:
    section = collector.collect(Tick(1.7e9 + now, now, DriverView(True, "ok", devices=devices), replies))
    return {family.metric.name: dict(family.samples) for family in section.families}


def counted(exported: Values) -> dict[LabelValues, Value]:
    return {labels: value for labels, value in exported["gpu_xid_errors_total"].items() if value}


def test_driver_event_is_counted_with_its_time() -> None:
    collector = EventsCollector(None)
    exported = values(collector, 5.0, event(type="xid", xid=31, uuid="GPU-a"))

    assert counted(exported) == {("GPU-a", "application"): 1}
    assert exported["gpu_xid_last_timestamp_seconds"] == {
        ("GPU-a", "31", "application", "GPU memory page fault"): 1.7e9 + 5
    }
    assert "gpu_xid_unrepaired_timestamp_seconds" not in exported


def test_mig_changes_are_counted_and_foreign_events_are_not() -> None:
    exported = values(EventsCollector(None), 5.0, event(type="mig"), event(type="gpu_unavailable"), event(type="xid"))

    assert exported["gpu_mig_changes_total"] == {("GPU-a",): 1}
    assert counted(exported) == {}


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.touch()
    return path


@pytest.mark.parametrize(("later", "errors"), [(3.0, 1), (30.0, 2)])
def test_error_of_both_sources_counts_once(kmsg: Path, later: float, errors: int) -> None:
    log = KernelLog(kmsg, parse)
    collector = EventsCollector(log)
    values(collector, 1.0)
    kmsg.write_bytes(LOST)
    values(collector, 2.0)
    exported = values(collector, later, event(type="xid", xid=79))
    log.close()

    assert counted(exported) == {("GPU-a", "node"): errors}


def test_two_errors_of_one_source_count_twice() -> None:
    exported = values(EventsCollector(None), 1.0, event(type="xid", xid=31), event(type="xid", xid=31))

    assert counted(exported) == {("GPU-a", "application"): 2}


def test_event_of_another_device_counts_there() -> None:
    devices = (device(), device("GPU-b", "00000000:86:00.0"))
    exported = values(EventsCollector(None), 1.0, event(type="xid", xid=31, uuid="GPU-b"), devices=devices)

    assert counted(exported) == {("GPU-b", "application"): 1}


def test_event_that_several_event_sets_report_counts_once() -> None:
    devices = (device(), device("GPU-b", "00000000:86:00.0"), device("GPU-c", "00000000:87:00.0"))
    replies = [
        Reply(1, "read", 0, events=[{"type": kind, "uuid": "GPU-b"} | xid], uuid=uuid)
        for uuid in ("GPU-a", "GPU-b", "GPU-c")
        for kind, xid in (("xid", {"xid": 31}), ("mig", {}))
    ]
    exported = values(EventsCollector(None), 1.0, *replies, devices=devices)

    assert counted(exported) == {("GPU-b", "application"): 1}
    assert exported["gpu_mig_changes_total"] == {("GPU-b",): 1}


def test_mig_changes_are_0_of_a_gpu_with_mig_and_absent_of_others() -> None:
    with_mig, without = device(), device("GPU-b", "00000000:86:00.0")
    devices = (replace(with_mig, reading=DeviceReading(mig_mode=False)), without)
    amd = replace(device("GPU-c"), reading=DeviceReading(mig_mode=True), vendor=AMD)

    exported = values(EventsCollector(None), 1.0, devices=(*devices, amd))

    assert exported["gpu_mig_changes_total"] == {("GPU-a",): 0}


@pytest.mark.parametrize("uuid", ["", "GPU-x"])
def test_event_of_a_device_that_is_not_exported_is_logged_once(uuid: str, caplog: pytest.LogCaptureFixture) -> None:
    collector = EventsCollector(None)
    exported = [values(collector, now, event(type="xid", xid=31, uuid=uuid)) for now in (1.0, 2.0)]
    exported += [values(collector, now) for now in (15.0, 30.0)]

    assert [counted(each) for each in exported] == [{}] * 4
    assert [record.getMessage() for record in caplog.records] == [
        f"Xid 31 on {uuid or 'a GPU that the driver does not name'} "
        f"(from nvml, event set of GPU-a) is not counted: the GPU is not exported"
    ]


def test_event_before_the_first_view_of_its_device_is_counted_later() -> None:
    collector = EventsCollector(None)
    before = values(collector, 1.0, event(type="xid", xid=31, uuid="GPU-a"), devices=())
    after = values(collector, 2.0)

    assert (counted({"gpu_xid_errors_total": {}} | before), counted(after)) == ({}, {("GPU-a", "application"): 1})


def test_sources_that_are_up(kmsg: Path) -> None:
    log, missing = KernelLog(kmsg, parse), KernelLog(kmsg.with_name("none"), parse)
    exported = [
        values(EventsCollector(log), 1.0),
        values(EventsCollector(missing), 1.0, devices=(device(events=()),)),
        values(EventsCollector(None), 1.0, devices=(device(events=None),)),
        values(EventsCollector(None), 1.0, devices=(device(), device("GPU-b", events=()))),
        values(EventsCollector(None), 1.0, devices=(device(), device("GPU-b", events=None))),
    ]
    log.close()

    assert [v["gpugauge_event_source_up"] for v in exported] == [
        {("nvml",): 1, ("kmsg",): 1},
        {("nvml",): 0, ("kmsg",): 0},
        {("nvml",): 0},
        {("nvml",): 0},
        {("nvml",): 1},
    ]


def test_same_section_without_events() -> None:
    collector = EventsCollector(None)
    view = DriverView(True, "ok", devices=(device(),))
    first = collector.collect(Tick(1.0, 1.0, view))

    assert collector.collect(Tick(2.0, 2.0, view)) is first
    assert collector.collect(Tick(3.0, 3.0, view, (event(type="xid", xid=31),))) is not first


OFF_THE_BUS = ("GPU-a", "79", "node", "GPU has fallen off the bus")
OLD = b"2,17,400000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


def test_errors_before_the_start_have_their_time_and_are_not_counted(kmsg: Path) -> None:
    kmsg.write_bytes(OLD)
    log = KernelLog(kmsg, parse)
    exported = values(EventsCollector(log), 1000.0)
    log.close()

    assert counted(exported) == {}
    assert exported["gpu_xid_last_timestamp_seconds"] == {OFF_THE_BUS: 1.7e9 + 400}
    assert exported["gpu_xid_unrepaired_timestamp_seconds"] == {OFF_THE_BUS: 1.7e9 + 400}


def test_errors_before_the_start_wait_for_their_gpu(kmsg: Path) -> None:
    kmsg.write_bytes(OLD)
    log = KernelLog(kmsg, parse)
    collector = EventsCollector(log)
    exported = [values(collector, now, devices=devices) for now, devices in ((1000.0, ()), (1100.0, (device(),)))]
    log.close()

    assert [each.get("gpu_xid_unrepaired_timestamp_seconds") for each in exported] == [None, {OFF_THE_BUS: 1.7e9 + 400}]


@pytest.mark.parametrize(
    "repair",
    [
        b"5,18,500000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03\n",
        b"5,18,500000000,-;NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (Boot) to 0x0 (None)",
    ],
    ids=["driver loaded", "no action required"],
)
@pytest.mark.parametrize("live", [False, True])
def test_repairs_in_the_kernel_log_close_the_errors_before_them(kmsg: Path, repair: bytes, *, live: bool) -> None:
    kmsg.write_bytes(OLD if live else OLD + repair)
    log = KernelLog(kmsg, parse)
    collector = EventsCollector(log)
    exported = values(collector, 1000.0)
    assert ("gpu_xid_unrepaired_timestamp_seconds" in exported) is live
    if live:
        with kmsg.open("ab") as file:
            file.write(repair)
        exported = values(collector, 1001.0)
    log.close()

    assert "gpu_xid_unrepaired_timestamp_seconds" not in exported
    assert exported["gpu_xid_last_timestamp_seconds"][OFF_THE_BUS] == 1.7e9 + 400


def test_errors_of_a_gpu_that_was_forgotten_end() -> None:
    collector = EventsCollector(None)
    exported = [
        values(collector, 1.0, event(type="xid", xid=79)),
        values(collector, 2.0, devices=(device(up=False),)),
        values(collector, 3.0, devices=()),
    ]

    assert [OFF_THE_BUS in each.get("gpu_xid_unrepaired_timestamp_seconds", {}) for each in exported] == [
        *(True, True, False)
    ]


def test_a_gpu_that_is_known_no_more_is_exported_for_an_hour() -> None:
    collector, other = EventsCollector(None), device("GPU-b", "00000000:5E:00.0")
    values(collector, 1.0, event(type="xid", xid=79), devices=(device(), other))

    after = [counted(values(collector, now, devices=(other,))) for now in (10.0, 3000.0, 4000.0)]

    assert [("GPU-a", "node") in each for each in after] == [True, True, False]
