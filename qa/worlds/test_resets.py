"""The counters of drawn drivers with resets, garbage and failures; Prometheus adds up what is exported."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from tests.drawn import seeds
from tests.driver.nvidia.otherdriver import Driver
from tests.simulator.build import opened

from gpugauge.driver.codes import Group
from gpugauge.driver.nvidia.nvml import Nvml, use_library, used_library

READINGS = 200
OK, UNKNOWN = 0, 999
UNSIGNED_LONG_LONG = 3  # of nvmlValueType_t
# NVML_FI_* in nvml.h: those of throttling in ns, of NVLink in KiB, of ECC, of remapped rows and of PCIe.
FIELDS: tuple[tuple[int, Group, str, str | None, int], ...] = (
    (74, "normal", "clocks_event_nanoseconds", "sw_power_cap", 1),
    (138, "normal", "nvlink_transmitted_bytes", None, 1024),
    (4, "slow", "ecc_errors", "uncorrected_volatile", 1),
    (94, "slow", "pcie_replays", None, 1),
    (45, "slow", "nvlink_errors", "crc_data", 1),
)


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


def energy(nvml: Nvml, answers: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return what is read of the energy."""
    left = iter(answers)

    def answer(_handle: object, value: Any) -> int:
        code, value._obj.value = next(left)
        return code

    use_library(Driver(nvmlDeviceGetTotalEnergyConsumption=answer))
    return [nvml.read(0, ["normal"])[0]["normal"].get("energy_millijoules") for _ in answers]


def field_value(
    nvml: Nvml, answers: Sequence[tuple[int, int]], number: int, group: Group, field: str, key: str | None
) -> list[int | None]:
    """Return what is read of a field value, of which the others are those of the simulator."""
    left = iter(answers)
    library: Any = used_library()
    simulated = library.nvmlDeviceGetFieldValues
    read: list[int | None] = []

    def answer(handle: object, count: int, values: Any) -> int:
        assert simulated(handle, count, values) == OK
        for value in values._obj:
            if value.fieldId == number:
                value.nvmlReturn, value.value.ullVal = next(left)
                value.valueType = UNSIGNED_LONG_LONG
        return OK

    use_library(Driver(nvmlDeviceGetFieldValues=answer))
    for _ in answers:
        found = nvml.read(0, [group])[0].get(group, {}).get(field)
        read.append(found if key is None else (found or {}).get(key))
    return read


@seeds(range(60))
def test_prometheus_adds_up_the_energy_of_drawn_drivers(seed: int) -> None:
    answers, total = drawn(random.Random(seed))
    exported = [value for value in energy(opened("gpus: {model: h100}"), answers) if value is not None]

    assert len(exported) > len(answers) / 2
    assert increase(exported) == total


@seeds(range(5))
def test_prometheus_adds_up_the_field_values_of_drawn_drivers(seed: int) -> None:
    for number, group, field, key, factor in FIELDS:
        answers, total = drawn(random.Random(f"{number} {seed}"))
        nvml = opened("gpus: {model: h100}")
        exported = [value for value in field_value(nvml, answers, number, group, field, key) if value is not None]

        assert len(exported) > len(answers) / 2, field
        assert increase(exported) == total * factor, field
