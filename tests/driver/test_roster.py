"""GPUs that are lost before the daemon starts or while it restarts: shipped scenarios, with real worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpugauge.driver.api import DriverView
from gpugauge.driver.bus import BusDevice, pci_address
from gpugauge.driver.client import Worker
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.remembered import Remembered, StateFile
from gpugauge.driver.supervisor import Supervisor
from gpugauge.simulator import WORKER
from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import Scenario, load_scenario
from tests.driver.fakeworker import Node, read_on, released, running, until, up
from tests.simulator.build import scenario


@pytest.fixture
def start() -> Iterator[Callable[..., Supervisor]]:
    supervisors: list[Supervisor] = []

    def started(of: Scenario, **arguments: Any) -> Supervisor:
        simulation = of.simulation()
        world = World(simulation)

        def bus() -> tuple[BusDevice, ...]:
            now = world.now()
            present = [device for device in world.devices if device.on_bus(now)]
            return tuple(BusDevice(pci_address(device.bus_id), visible=True) for device in present)

        intervals = ReadingIntervals({"fast": 0.05}, deadline=0.5)
        supervisors.append(Supervisor(intervals, partial(Worker, WORKER), simulation, pci=bus, **arguments))
        supervisors[-1].start()
        return supervisors[-1]

    yield started
    for supervisor in supervisors:
        supervisor.stop()


def reasons(view: DriverView) -> dict[str, str]:
    """Return the reasons of the GPUs that are down, by the bus number."""
    return {(d.reading.pci_bus_id or "")[9:11]: d.reason for d in view.devices if not d.up}


def messages(caplog: pytest.LogCaptureFixture, start: str) -> list[dict[str, Any]]:
    return [r.fields for r in caplog.records if r.getMessage().startswith(start)]  # type: ignore[attr-defined]  # `extra`


def test_devices_that_were_lost_before_the_start(
    start: Callable[..., Supervisor], caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = start(load_scenario("lost-before-start"))

    view = until(supervisor, lambda v: len(v.devices) == 5)
    time.sleep(0.3)

    assert reasons(view) == {"11": "gpu_is_lost", "14": "not_enumerated"}
    assert [d.up for d in view.devices].count(True) == 3
    lines = messages(caplog, "GPU down")
    assert sorted((line["uuid"], line["reason"]) for line in lines) == [
        ("PCI-00000000:11:00.0", "gpu_is_lost"),
        ("PCI-00000000:14:00.0", "not_enumerated"),
    ]
    assert [line.get("index") for line in lines if line["reason"] == "gpu_is_lost"] == [1]


def test_device_whose_opening_hangs_from_the_start(
    start: Callable[..., Supervisor], caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = start(load_scenario("hung-before-start"))

    view = until(supervisor, lambda v: [d.up for d in v.devices].count(True) == 3)

    assert reasons(view) == {"11": "hangs"}
    (line,) = messages(caplog, "GPU quarantined")
    assert (line["index"], line["uuid"], line["reason"]) == (1, "PCI-00000000:11:00.0", "hangs")


def test_device_that_is_lost_while_the_daemon_restarts(start: Callable[..., Supervisor], tmp_path: Path) -> None:
    gone, state = tmp_path / "gone", tmp_path / "gpus.json"
    text = f"name: m\ngpus: [{{model: h100}}, {{model: h100, uuid: GPU-b, gone_while_exists: {gone}}}]"
    first = start(scenario(text), state_file=StateFile(state))
    until(first, lambda v: list(up(v).values()) == [True, True])
    first.stop()
    gone.touch()

    second = start(scenario(text), state_file=StateFile(state))
    view = until(second, lambda v: len(v.devices) == 2)
    lost = next(d for d in view.devices if d.uuid == "GPU-b")
    assert (lost.up, lost.reason, lost.reading.index) == (False, "removed", 1)
    assert lost.reading.name == "NVIDIA H100 80GB HBM3"

    second.forget("GPU-b")
    until(second, lambda v: "GPU-b" not in up(v))
    second.stop()
    third = start(scenario(text), state_file=StateFile(state))
    until(third, lambda v: v.up and bool(v.devices))
    assert "GPU-b" not in up(third.view())
    gone.unlink()
    third.release(0.1)  # a new worker
    until(third, lambda v: up(v).get("GPU-b", False))


def test_device_that_is_remembered_is_down_with_the_driver(run: Any, tmp_path: Path) -> None:
    state = StateFile(tmp_path / "gpus.json")
    state.save([Remembered("GPU-a", 0, "H100", None, time.time())], ())
    node = Node("GPU-a")
    node.opening = 9

    view = until(run(node, state_file=StateFile(tmp_path / "gpus.json")), lambda v: v.reason == "driver_not_loaded")

    assert [(d.uuid, d.up, d.reason) for d in view.devices] == [("GPU-a", False, "driver_down")]


def test_devices_of_a_driver_that_is_not_installed_are_not_lost(run: Any) -> None:
    node = Node("GPU-a")
    node.opening = 12
    bus = (BusDevice("0000:10:00.0", visible=True),)

    assert until(run(node, pci=lambda: bus), lambda v: v.reason == "library_not_found").devices == ()


def test_devices_of_a_driver_that_finds_none_are_down(run: Any) -> None:
    node = Node("GPU-a")
    node.opening = 28
    bus = (BusDevice("0000:10:00.0", visible=True),)

    view = until(run(node, pci=lambda: bus), lambda v: v.reason == "gpu_not_found")

    assert [(d.uuid, d.reason) for d in view.devices] == [("PCI-00000000:10:00.0", "driver_down")]


def test_all_devices_are_lost_and_return_with_the_driver(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")
    with caplog.at_level("INFO"):
        node.opening = 18
        node.devices = [1, 1]
        until(supervisor, lambda v: v.reason == "library_mismatch")
        node.opening, node.devices = None, ["GPU-a", "GPU-b"]
        until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})

    assert sorted(line["uuid"] for line in messages(caplog, "GPU down: driver_down")) == ["GPU-a", "GPU-b"]
    assert sorted(line["uuid"] for line in messages(caplog, "GPU back")) == ["GPU-a", "GPU-b"]


def test_device_that_is_not_listed_is_forgotten_after_a_while(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b", forget_after=0.5)
    released(supervisor, 0.1)
    del node.devices[1]

    with caplog.at_level("INFO"):
        until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": False} and v.up)
        until(supervisor, lambda v: up(v) == {"GPU-a": True})

    assert [line["uuid"] for line in messages(caplog, "GPU forgotten")] == ["GPU-b"]


def test_step_of_the_clock_forgets_no_device_that_was_read(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b", forget_after=7 * 86400.0)
    released(supervisor, 0.1)
    del node.devices[1]
    until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": False} and v.up)

    later = time.time() + 30 * 86400.0
    monkeypatch.setattr(time, "time", lambda: later)
    read_on(supervisor, node)

    assert up(supervisor.view()) == {"GPU-a": True, "GPU-b": False}


def test_device_that_was_lost_long_before_the_start_is_forgotten(run: Any, tmp_path: Path) -> None:
    state = StateFile(tmp_path / "gpus.json")
    state.save([Remembered("GPU-b", 1, "H100", None, time.time() - 8 * 86400.0)], ())

    node = Node("GPU-a")
    supervisor = run(node, forget_after=7 * 86400.0, state_file=StateFile(tmp_path / "gpus.json"))
    until(supervisor, lambda v: up(v) == {"GPU-a": True})
    read_on(supervisor, node)

    assert up(supervisor.view()) == {"GPU-a": True}


def test_device_that_settings_exclude_is_not_lost(run: Any, tmp_path: Path) -> None:
    state = StateFile(tmp_path / "gpus.json")
    state.save([Remembered("GPU-b", 1, "H100", None, time.time())], ())

    node = Node("GPU-a", 15)
    supervisor = run(node, devices=["GPU-a"], state_file=StateFile(tmp_path / "gpus.json"))
    until(supervisor, lambda v: bool(v.devices))
    read_on(supervisor, node)

    assert up(supervisor.view()) == {"GPU-a": True}


def test_filter_that_matches_no_gpu_is_a_warning_with_the_gpus(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = []
    for devices in (["99", "GPU-b", "GPU-nosuch"], ["0", "GPU-b"]):
        caplog.clear()
        node = Node("GPU-a", "GPU-b")
        supervisor = run(node, devices=devices)
        until(supervisor, lambda v: bool(v.devices))
        read_on(supervisor, node)
        found.append([r.getMessage() for r in caplog.records if r.getMessage().startswith("driver.devices")])

    assert found == [["driver.devices: no GPU matches 99, GPU-nosuch; the GPUs are: 0 GPU-a, 1 GPU-b"], []]


def test_device_that_fails_is_forgotten_and_the_others_are_read_on(run: Any) -> None:
    node, supervisor = running(run, "GPU-a", "GPU-b")
    node.devices[1] = 15
    until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": False})

    supervisor.forget("GPU-b")
    until(supervisor, lambda v: up(v) == {"GPU-a": True})
    read_on(supervisor, node)

    assert (supervisor.view().up, up(supervisor.view()), node.ends) == (True, {"GPU-a": True}, [])
    node.devices[1] = "GPU-b"
    until(supervisor, lambda v: up(v) == {"GPU-a": True, "GPU-b": True})


@pytest.mark.parametrize("named", ["0", "GPU-a"])
def test_devices_that_settings_exclude_are_not_lost_with_the_driver(run: Any, tmp_path: Path, named: str) -> None:
    state = StateFile(tmp_path / "gpus.json")
    state.save([Remembered(f"GPU-{name}", i, "H100", None, time.time()) for i, name in enumerate("ab")], ())
    node = Node("GPU-a", "GPU-b", "GPU-c")
    node.opening = 28
    bus = tuple(BusDevice(f"0000:{number}0:00.0", visible=True) for number in range(1, 4))
    supervisor = run(node, devices=[named], pci=lambda: bus, state_file=StateFile(tmp_path / "gpus.json"))

    before = up(until(supervisor, lambda v: bool(v.devices)))
    node.opening = None
    until(supervisor, lambda v: up(v) == {"GPU-a": True})
    node.opening, node.devices = 28, [28, 28, 28]
    after = up(until(supervisor, lambda v: not v.up))

    assert before == after == {"GPU-a": False}
