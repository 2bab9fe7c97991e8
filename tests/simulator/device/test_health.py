from __future__ import annotations

from typing import Any

import pytest

from gpugauge.settings.kinds import ConfigError
from gpugauge.simulator.device.device import Device
from tests.simulator.build import Clock, opened, scenario

FAULTY = (
    "gpus: [{model: h100, load: 0.5, health: {since: 20, until: 90, reset_at: 60, recovery_action: 1, pcie_width: 8, "
    "temperature: 91, ecc: [{at: 20, kind: uncorrected}], nvlink_errors: {recovery: 2}, "
    "remapped_rows: {uncorrectable: 1, pending: 1, failure: 1}}}]"
)
MOMENTS = (10.0, 30.0, 70.0, 100.0)


def gpu(text: str) -> Device:
    return Clock().world(text).devices[0]


@pytest.mark.parametrize(
    ("state", "values"),
    [
        (lambda d, t: d.health.recovery_action(t), (0, 1, 0, 0)),
        (lambda d, t: d.health.rows("remapped_rows", "pending", t), (0, 1, 0, 0)),
        (lambda d, t: d.health.rows("remapped_rows", "failure", t), (0, 1, 1, 0)),
        (lambda d, t: d.pcie(t), ((5, 16), (5, 8), (5, 8), (5, 16))),
        (lambda d, t: d.temperature(t) == 91, (False, True, True, False)),
    ],
    ids=["recovery action", "pending row", "failed row", "PCIe width", "temperature"],
)
def test_states_begin_and_end(state: Any, values: tuple[Any, ...]) -> None:
    device = gpu(FAULTY)

    assert tuple(state(device, t) for t in MOMENTS) == values


def test_a_reset_restarts_the_counters_since_the_load_of_the_driver() -> None:
    clock = Clock()
    driver = opened(FAULTY, clock)
    found = []
    for clock.now in MOMENTS:
        driver.read(0, ["slow"])  # of a counter that falls, the first reading is not believed
        slow = driver.read(0, ["slow"])[0]["slow"]
        errors, links = slow["ecc_errors"], slow["nvlink_errors"]
        found.append((errors["uncorrected_volatile"], errors["uncorrected_aggregate"], links["recovery"]))

    assert found == [(0, 0, 0), (1, 1, 2), (0, 1, 0), (0, 1, 0)]


def test_energy_restarts_at_a_reset() -> None:
    device = gpu(FAULTY)

    assert device.energy(59) > device.energy(30) > device.energy(61) > 0


@pytest.mark.parametrize(
    ("health", "message"),
    [
        ("{reset_at: 5, counters_reset_at: 5}", "omit counters_reset_at"),
        ("{since: 9, until: 9}", "until must come after since"),
    ],
)
def test_contradictions_are_refused(health: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scenario(f"gpus: [{{model: h100, health: {health}}}]")
