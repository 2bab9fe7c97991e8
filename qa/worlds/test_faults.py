"""Drawn lives of a GPU: counters that restart, fail or are garbage for one reading, and Xid errors before and after."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.drawn import seeds
from tests.driver.nvidia.otherdriver import Driver
from tests.simulator.build import opened

from gpugauge.collectors.device.faults import Faults
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.driver.nvidia.nvml import use_library, used_library

READINGS = 80
T = 1.7e9
SECONDS = 5.0  # between two readings
XID = 119  # lasts until a repair; the recovery action does not cover it
OK, NOT_SUPPORTED, UNKNOWN = 0, 3, 999
UNSIGNED_LONG_LONG = 3  # of nvmlValueType_t
ENERGY = 0
REASONS = range(74, 80)  # NVML_FI_DEV_PERF_POLICY_*
NEAR = 4  # readings around the reset without failures


@dataclass
class Life:
    """What the driver answers in each reading, by field (0: the energy), and between which readings things happen."""

    supported: set[int]
    answers: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    reset: int | None = None
    errors: set[int] = field(default_factory=set)

    def open_after(self, reading: int) -> bool:
        """Return whether there was an error up to a reading that no reset has followed."""
        reset = self.reset if self.reset is not None and self.reset < reading else -1
        return any(reset <= error < reading for error in self.errors)


def drawn(rng: random.Random) -> Life:
    reasons = {number for number in REASONS if rng.random() < 0.6} or {74}
    energy = rng.random() < 0.6
    life = Life(reasons | ({ENERGY} if energy else set()))
    life.reset = rng.randrange(20, 60) if rng.random() < 0.5 else None
    # Without energy at least one counter must show the reset.
    telling = {ENERGY} if energy else {rng.choice(sorted(reasons))}
    counters = {n: 10**12 if n in telling else rng.choice([0, 10**6, 10**12]) for n in life.supported}
    until = dict.fromkeys(life.supported, 0)  # the reading up to which a value fails
    for reading in range(READINGS):
        if reading == life.reset:
            counters = dict.fromkeys(counters, 0)
        counters = {n: value + rng.choice([0, rng.randrange(1, 10**5)]) for n, value in counters.items()}
        calm = reading > READINGS - 8 or (life.reset is not None and abs(reading - life.reset) < NEAR)
        answers = {n: (OK, value) for n, value in counters.items()}
        for number in life.supported:
            if rng.random() < 0.04:
                until[number] = reading + rng.randint(1, 12)
            if reading < until[number] and not calm:
                answers[number] = UNKNOWN, 0
        wrong = rng.choice(sorted(life.supported))
        if rng.random() < 0.2 and not calm and reading % 3 == 0 and answers[wrong][0] == OK:
            answers[wrong] = OK, rng.randint(0, answers[wrong][1])
        life.answers.append(answers)
    # An error between the reset and the first reading after it cannot be told from one before the reset.
    life.errors = {n for n in range(1, READINGS - 1) if rng.random() < 0.05 and n != life.reset}
    return life


def readings(life: Life) -> Iterator[DeviceReading]:
    """Yield what the driver's part makes of the answers."""
    nvml = opened("gpus: {model: h100}")
    now = life.answers[:1]
    simulated: Any = used_library()
    simulated_values = simulated.nvmlDeviceGetFieldValues

    def energy(_handle: object, value: Any) -> int:
        code, value._obj.value = now[0].get(ENERGY, (NOT_SUPPORTED, 0))
        return code

    def field_values(handle: object, count: int, values: Any) -> int:
        assert simulated_values(handle, count, values) == OK
        for value in values._obj:
            if value.fieldId in REASONS:
                value.nvmlReturn, value.value.ullVal = now[0].get(value.fieldId, (NOT_SUPPORTED, 0))
                value.valueType = UNSIGNED_LONG_LONG
        return OK

    use_library(Driver(nvmlDeviceGetTotalEnergyConsumption=energy, nvmlDeviceGetFieldValues=field_values))
    for now[0] in life.answers:
        yield DeviceReading.of([nvml.read(0, ["normal"])[0]["normal"]])


@seeds(range(100))
def test_an_error_is_open_until_a_reset_and_no_longer(seed: int) -> None:
    life = drawn(random.Random(seed))
    faults = Faults()
    for number, reading in enumerate(readings(life)):
        if number in life.errors:
            faults.record("GPU-a", XID, T + SECONDS * (number - 0.5))
        faults.observe((Device("GPU-a", True, "ok", reading, {"normal": number}),), T + SECONDS * number)
        shown = bool(faults.of("GPU-a"))

        if life.open_after(number + 1):
            assert shown, number
        if number == READINGS - 1:
            assert shown == life.open_after(number + 1)
