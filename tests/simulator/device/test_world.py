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


def test_process_loads_its_card_while_it_lives() -> None:
    card = Clock().world(BUSY).cards[0]

    assert [card.utilization(t) for t in (99, 101, 106, 199, 202)] == [0, 100, 0, 0, 0]
    assert [card.utilization(t, "memory") for t in (99, 101, 106)] == [0, 25, 0]
    assert [card.memory_used(t) for t in (99, 100, 199, 200)] == [0, 10 << 30, 10 << 30, 0]
    assert card.busy(1000) == pytest.approx(50)


def test_seconds_asked_for_again() -> None:
    """More of them than a card remembers, and in any order."""
    text = f"{BUSY}  - {{pid: 11, gpus: [0], start: 200, load: {{shape: sine, low: 0.1, high: 0.6, period: 7}}}}\n"
    card, seconds = Clock().world(text).cards[0], [90 + 0.5 * i for i in range(300)]
    asked = [*seconds, *reversed(seconds), *seconds]

    found = [(card.busy(t), card.work(t), card.moved(t), card.utilization(t, "memory")) for t in asked]

    fresh = {}
    for t in seconds:
        new = Clock().world(text).cards[0]
        fresh[t] = (new.busy(t), new.work(t), new.moved(t), new.utilization(t, "memory"))
    assert found == [fresh[t] for t in asked]


def test_neighbour_stays_idle() -> None:
    card = Clock().world(BUSY).cards[1]

    assert (card.utilization(101), card.power(101), card.memory_used(101)) == (0, 60_000, 0)


def test_energy_is_the_sum_of_power() -> None:
    card = Clock().world(BUSY).cards[0]

    watts = sum(card.power(t) for t in range(91, 221))

    assert card.energy(220) - card.energy(90) == pytest.approx(watts, abs=130)


def test_temperature_follows_slowly() -> None:
    card = Clock().world("gpus: [{model: a100, load: {shape: points, points: [[10, 0], [10.1, 1]]}}]").cards[0]
    temperatures = [card.temperature(t) for t in (10, 15, 20, 40)]

    assert temperatures == sorted(set(temperatures))


def test_clocks_rest_without_a_process() -> None:
    card = Clock().world("gpus: [{model: geforce}]\nprocesses: [{pid: 1, gpus: [0], start: 5}]").cards[0]

    assert [(card.performance_state(t), card.clock(1, t)) for t in (0, 6)] == [(8, 210), (0, 2745)]


def test_job_spreads_over_cards() -> None:
    world = Clock().world(
        "gpus: {model: h100, count: 2}\nprocesses: [{pid: 5, gpus: all, per_gpu: 2, container_pid: 1}]"
    )

    found = [(p.pid, p.container_pid, p.gpus) for p in world.processes]

    assert found == [(5, 1, (0,)), (6, 2, (0,)), (7, 3, (1,)), (8, 4, (1,))]


def test_one_process_on_several_cards() -> None:
    world = Clock().world("gpus: {model: h100, count: 3}\nprocesses: [{pid: 5, gpus: [0, 2], memory: 1GiB}]")

    assert [card.memory_used(1) for card in world.cards] == [1 << 30, 0, 1 << 30]


def test_cards_differ_and_stay_the_same() -> None:
    first, second = (Clock().world("gpus: {model: h100, count: 64}") for _ in range(2))

    assert [c.uuid for c in first.cards] == [c.uuid for c in second.cards]
    assert len({(c.uuid, c.serial, c.bus_id) for c in first.cards}) == 64


def test_overrides_come_before_the_model() -> None:
    card = Clock().world("gpus: [{model: h100, name: Mine, memory: 1GiB, power_limit_watts: 300}]").cards[0]

    assert (card.name, card.memory_total, card.power_limit_watts) == ("Mine", 1 << 30, 300)


def test_time_stands_still() -> None:
    clock = Clock()
    world = clock.world("gpus: {model: h100}\nfrozen_at: 12.5")
    clock.now = 99.0

    assert world.now() == 12.5


@pytest.mark.parametrize("model", PRESETS)
def test_idle_card_of_every_model(model: str) -> None:
    card = Clock().world(f"gpus: {{model: {model}}}").cards[0]

    assert (card.utilization(5), card.power(5)) == (0, PRESETS[model]["idle_watts"] * 1000)
