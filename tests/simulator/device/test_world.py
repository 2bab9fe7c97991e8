from __future__ import annotations

import pytest

from gpugauge.simulator.device.presets import PRESETS
from tests.simulator.build import Clock

BUSY = """
gpus: {model: a100, count: 2}
processes:
  - {pid: 10, gpus: [0], memory: 10GiB, start: 100, end: 200, intensity: 0.5, traffic: 0.25,
     load: {shape: square, high: 1.0, low: 0.0, period: 10, duty: 0.5}}
"""


def test_process_loads_its_device_while_it_lives() -> None:
    device = Clock().world(BUSY).devices[0]

    assert [device.utilization(t) for t in (99, 101, 106, 199, 202)] == [0, 100, 0, 0, 0]
    assert [device.utilization(t, "memory") for t in (99, 101, 106)] == [0, 25, 0]
    assert [device.memory_used(t) for t in (99, 100, 199, 200)] == [0, 10 << 30, 10 << 30, 0]
    assert device.busy(1000) == pytest.approx(50)


def test_repeated_seconds() -> None:
    """More seconds than a GPU caches, in any order."""
    text = f"{BUSY}  - {{pid: 11, gpus: [0], start: 200, load: {{shape: sine, low: 0.1, high: 0.6, period: 7}}}}\n"
    device, seconds = Clock().world(text).devices[0], [90 + 0.5 * i for i in range(300)]
    repeated = [*seconds, *reversed(seconds), *seconds]

    found = [(device.busy(t), device.work(t), device.moved(t), device.utilization(t, "memory")) for t in repeated]

    fresh = {}
    for t in seconds:
        new = Clock().world(text).devices[0]
        fresh[t] = (new.busy(t), new.work(t), new.moved(t), new.utilization(t, "memory"))
    assert found == [fresh[t] for t in repeated]


def test_neighbour_stays_idle() -> None:
    device = Clock().world(BUSY).devices[1]

    assert (device.utilization(101), device.power(101), device.memory_used(101)) == (0, 60_000, 0)


def test_energy_is_the_sum_of_power() -> None:
    device = Clock().world(BUSY).devices[0]

    watts = sum(device.power(t) for t in range(91, 221))

    assert device.energy(220) - device.energy(90) == pytest.approx(watts, abs=130)


def test_temperature_follows_slowly() -> None:
    device = Clock().world("gpus: [{model: a100, load: {shape: points, points: [[10, 0], [10.1, 1]]}}]").devices[0]
    temperatures = [device.temperature(t) for t in (10, 15, 20, 40)]

    assert temperatures == sorted(set(temperatures))


def test_clocks_are_lower_without_a_process() -> None:
    device = Clock().world("gpus: [{model: geforce}]\nprocesses: [{pid: 1, gpus: [0], start: 5}]").devices[0]

    assert [(device.performance_state(t), device.clock(1, t)) for t in (0, 6)] == [(8, 210), (0, 2745)]


def test_job_spreads_over_devices() -> None:
    world = Clock().world(
        "gpus: {model: h100, count: 2}\nprocesses: [{pid: 5, gpus: all, per_gpu: 2, container_pid: 1}]"
    )

    found = [(p.pid, p.container_pid, p.gpus) for p in world.processes]

    assert found == [(5, 1, (0,)), (6, 2, (0,)), (7, 3, (1,)), (8, 4, (1,))]


def test_one_process_on_several_devices() -> None:
    world = Clock().world("gpus: {model: h100, count: 3}\nprocesses: [{pid: 5, gpus: [0, 2], memory: 1GiB}]")

    assert [device.memory_used(1) for device in world.devices] == [1 << 30, 0, 1 << 30]


def test_devices_differ_and_stay_the_same() -> None:
    first, second = (Clock().world("gpus: {model: h100, count: 64}") for _ in range(2))

    assert [c.uuid for c in first.devices] == [c.uuid for c in second.devices]
    assert len({(c.uuid, c.serial, c.bus_id) for c in first.devices}) == 64


def test_overrides_come_before_the_model() -> None:
    device = Clock().world("gpus: [{model: h100, name: Mine, memory: 1GiB, power_limit_watts: 300}]").devices[0]

    assert (device.name, device.memory_total, device.power_limit_watts) == ("Mine", 1 << 30, 300)


def test_idle_device_of_every_model() -> None:
    for model, preset in PRESETS.items():
        device = Clock().world(f"gpus: {{model: {model}}}").devices[0]
        assert (device.utilization(5), device.power(5)) == (0, preset["idle_watts"] * 1000), model
