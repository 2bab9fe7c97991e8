"""The energy counter of drawn drivers with resets, garbage and failures; Prometheus adds up what is exported."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from gpugauge.driver.nvidia.nvml import use_library
from tests.driver.nvidia.otherdriver import Driver
from tests.simulator.build import opened

READINGS = 200
OK, UNKNOWN = 0, 999


def increase(values: Iterable[int]) -> int:
    """Return what increase() makes of samples: a fall is a reset to 0."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def drawn(rng: random.Random) -> tuple[list[tuple[int, int]], int]:
    """Return the code and the value of each reading, and the increase since the first one. Garbage is lower than the
    counter, and no two readings of garbage or of a reset follow each other.
    """
    counter = read = rng.choice([0, 1, 10**6, 10**12])
    answers, total, quiet = [(OK, counter)], 0, 0
    for _ in range(READINGS):
        added = rng.choice([0, rng.randint(1, 10**6)])
        counter, total, quiet = counter + added, total + added, quiet + 1
        if quiet > 3 and rng.random() < 0.1:
            quiet = 0
            if rng.random() < 0.5 and counter > 10**7:
                # Nobody knows what came between the last reading and the reset.
                counter, total = 0, total - (counter - read)
            elif counter:
                answers.append((OK, rng.choice([0, rng.randrange(counter)])))
        if rng.random() < 0.05 and quiet:
            answers.append((UNKNOWN, 0))
        else:
            answers.append((OK, counter))
            read = counter
    return [*answers, (OK, counter), (OK, counter)], total


@pytest.mark.parametrize("seed", range(60))
def test_prometheus_adds_up_the_energy_of_drawn_drivers(seed: int) -> None:
    answers, total = drawn(random.Random(seed))
    nvml = opened("gpus: {model: h100}")
    left = iter(answers)

    def energy(_handle: object, value: Any) -> int:
        code, value._obj.value = next(left)
        return code

    use_library(Driver(nvmlDeviceGetTotalEnergyConsumption=energy))
    readings = [nvml.read(0, ["normal"])[0]["normal"].get("energy_millijoules") for _ in answers]
    exported = [value for value in readings if value is not None]

    assert len(exported) > len(answers) / 2
    assert increase(exported) == total
