"""NVLinks of drawn topologies, read through the binding from a library that answers as they say."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.drawn import seeds
from tests.simulator.build import Clock

from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.simulator.nvml.library import Library

OK, INVALID, NOT_SUPPORTED, UNKNOWN = 0, 2, 3, 999
NUMBERS = 18  # links for which a library answers at all
TOTALS = {"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59, "ecc_data": 160}
BYTES = {"nvlink_transmitted_bytes": 138, "nvlink_received_bytes": 139}
OLD_SPEEDS = {number: link for link, number in enumerate((*range(84, 90), *range(132, 138)))}
VALUE = struct.Struct("=IIQqIIQ")  # nvmlFieldValue_t
STEPS = 4


@dataclass
class Step:
    """What the driver answers in one reading."""

    up: list[bool]
    state_fails: set[int]
    value_fails: set[tuple[int, int]]  # by field and link; -1 for totals
    totals: dict[int, int]


@dataclass
class Topology:
    links: int
    count_code: int  # of field 91
    absent: int  # the code for a link that the GPU does not have; OK means: down, with speed 0
    silent: bool  # values of links that are down are not supported
    old: bool  # speeds have an id for each link
    unsupported: set[int]  # fields that the GPU never has
    speed: int
    steps: list[Step] = field(default_factory=list)


def drawn(seed: int) -> Topology:
    rng = random.Random(seed)
    links, old = rng.randint(0, NUMBERS), rng.random() < 0.2
    topology = Topology(
        links=min(links, 12) if old else links,
        count_code=rng.choice([OK, OK, OK, NOT_SUPPORTED]),
        absent=rng.choice([OK, OK, INVALID, NOT_SUPPORTED]),
        silent=rng.random() < 0.5,
        old=old,
        unsupported={number for number in (*TOTALS.values(), *BYTES.values(), 164) if rng.random() < 0.2},
        speed=rng.choice([25781, 26562, 53125, rng.randint(1, 10**6)]),
    )
    totals = dict.fromkeys((*TOTALS.values(), *BYTES.values()), 0)
    how_many_up = rng.choice([0.0, 0.5, 0.9])
    for _ in range(STEPS):
        for number in totals:  # a link that comes back may start its counters again
            totals[number] = (
                rng.randint(0, totals[number]) if rng.random() < 0.2 else totals[number] + rng.randint(0, 99)
            )
        topology.steps.append(
            Step(
                up=[rng.random() < how_many_up for _ in range(topology.links)],
                state_fails={link for link in range(topology.links) if rng.random() < 0.05},
                value_fails={
                    (number, link)
                    for number in (164, *OLD_SPEEDS, *totals)
                    for link in (range(topology.links) if number == 164 else [-1])
                    if rng.random() < 0.05
                },
                totals=dict(totals),
            )
        )
    return topology


class Driver:
    """The simulated library; the NVLinks are those of a topology."""

    def __init__(self, library: Any, topology: Topology) -> None:
        self._library, self._topology = library, topology
        self.step = topology.steps[0]
        self.asked: set[int] = set()  # links

    def __getattr__(self, function: str) -> Any:
        return {
            "nvmlDeviceGetNvLinkState": self._state,
            "nvmlDeviceGetFieldValues": self._field_values,
        }.get(function) or getattr(self._library, function)

    def _state(self, _handle: Any, link: int, out: Any) -> int:
        self.asked.add(link)
        code = OK if link < self._topology.links else self._topology.absent if link < NUMBERS else INVALID
        if link in self.step.state_fails:
            code = UNKNOWN
        if code == OK:
            out._obj.value = link < self._topology.links and self.step.up[link]
        return code

    def _field_values(self, handle: Any, count: int, values: Any) -> int:
        assert self._library.nvmlDeviceGetFieldValues(handle, count, values) == OK
        for offset in range(0, count * VALUE.size, VALUE.size):
            number, scope, *_ = VALUE.unpack_from(values._obj, offset)
            found = self._answer(number, scope)
            if found is not None:
                VALUE.pack_into(values._obj, offset, number, scope, 0, 0, 3, *found)
        return OK

    def _answer(self, number: int, scope: int) -> tuple[int, int] | None:
        """Return code and value; None for a field that is not of NVLinks."""
        t = self._topology
        link = OLD_SPEEDS.get(number, scope if number == 164 else -1)
        if number == 91:
            return t.count_code, t.links
        if (
            number in (161, 162, 163, 202, 204, *range(206, 216))
            or number in t.unsupported
            or (number == 164 and t.old)
        ):
            return NOT_SUPPORTED, 0
        if (number in OLD_SPEEDS) and not t.old:
            return INVALID, 0
        if (number, link) in self.step.value_fails:
            return UNKNOWN, 0
        if number in self.step.totals:
            return (NOT_SUPPORTED, 0) if t.silent and not any(self.step.up) else (OK, self.step.totals[number])
        if link < 0:
            return None
        if link >= t.links:
            return (t.absent, 0) if link < NUMBERS else (INVALID, 0)
        if self.step.up[link]:
            return OK, t.speed
        return (NOT_SUPPORTED, 0) if t.silent else (OK, 0)


def expected(topology: Topology, step: Step) -> dict[str, Any]:
    """Return what a reading must have when the driver reports the number of links."""
    if not topology.links and topology.count_code == OK:
        return {}
    speeds = {
        str(link): topology.speed if up else 0
        for link, up in enumerate(step.up)
        if (up or not topology.silent) and not speed_fails(topology, step, link)
    }
    silent = topology.silent and not any(step.up)

    def total(number: int) -> bool:
        return number not in topology.unsupported and (number, -1) not in step.value_fails and not silent

    found = {
        "nvlink_active": {str(link): up for link, up in enumerate(step.up) if link not in step.state_fails},
        "nvlink_speed_megabytes_per_second": speeds,
        "nvlink_errors": {kind: step.totals[number] for kind, number in TOTALS.items() if total(number)},
        **{name: 1024 * step.totals[number] for name, number in BYTES.items() if total(number)},
    }
    return {name: value for name, value in found.items() if value != {}}


def speed_fails(topology: Topology, step: Step, link: int) -> bool:
    if not topology.old:
        return 164 in topology.unsupported or (164, link) in step.value_fails
    number = next(n for n, of in OLD_SPEEDS.items() if of == link)
    return number in topology.unsupported or (number, link) in step.value_fails


def reading(nvml: Nvml) -> dict[str, Any]:
    values, _ = nvml.read(0, ["normal", "slow"])
    return {name: value for group in values.values() for name, value in group.items() if name.startswith("nvlink_")}


WORLD = Clock().world("driver: {version: 570.124.06}\ngpus: {model: h100}")


def driver_of(topology: Topology) -> tuple[Driver, Nvml]:
    driver = Driver(Library(WORLD), topology)
    use_library(driver)
    nvml = Nvml()
    nvml.open()
    return driver, nvml


@seeds(range(200))
def test_drawn_topologies(seed: int) -> None:
    topology = drawn(seed)
    driver, nvml = driver_of(topology)
    for number, driver.step in enumerate(topology.steps):
        reading(nvml)  # of a counter that has started again, the second reading is the first that counts
        found, truth = reading(nvml), expected(topology, driver.step)
        if topology.count_code == OK:
            assert found == truth, number
            assert driver.asked <= set(range(topology.links))
            continue
        # Which links exist is then not known, and a value that was once not supported is not read again: a value is
        # right or absent, and that of a link that the GPU does not have is 0.
        for name, value in found.items():
            if isinstance(value, dict):
                unknown = value.keys() - TOTALS.keys() - {str(link) for link in range(topology.links)}
                assert not any(value.pop(key) for key in unknown), (number, name)
                assert value.items() <= truth.get(name, {}).items(), (number, name)
            else:
                assert value == truth[name], (number, name)


def test_a_driver_that_fails_the_request_for_the_count_is_asked_again() -> None:
    topology = drawn(0)
    topology.links, topology.count_code, topology.absent, topology.old = 4, UNKNOWN, OK, False
    for step in topology.steps:
        step.up, step.state_fails = [True] * 4, set()
    _, nvml = driver_of(topology)
    before = reading(nvml)["nvlink_active"]
    topology.count_code = OK

    assert len(before) == NUMBERS
    assert set(reading(nvml)["nvlink_active"]) == {"0", "1", "2", "3"}


def test_a_speed_may_fall() -> None:
    """Unlike a counter, of which a single low reading is not believed."""
    steps = [Step([up], set(), set(), dict.fromkeys((*TOTALS.values(), *BYTES.values()), 0)) for up in (True, False)]
    driver, nvml = driver_of(Topology(1, OK, OK, silent=False, old=False, unsupported=set(), speed=26562, steps=steps))
    speeds = []
    for driver.step in steps:
        speeds.append(reading(nvml)["nvlink_speed_megabytes_per_second"])

    assert speeds == [{"0": 26562}, {"0": 0}]
