"""On which NVLinks drawn errors are, and what is at their other ends, against a truth that is computed here."""

from __future__ import annotations

import random
import struct
from collections import Counter
from typing import Any

from tests.drawn import cases, seeds
from tests.driver.nvidia.otherdriver import Driver, clocked
from tests.simulator.build import Clock, opened

from gpugauge.driver.api import Device, DeviceReading
from gpugauge.driver.nvidia.fieldvalues import RARE
from gpugauge.driver.nvidia.nvml import Nvml, use_library, used_library
from gpugauge.faults.judged import health_of
from gpugauge.faults.table import NVLINK_NEVER, GpuHealth, ailments

TYPE, ADDRESS = "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"
LINKS = {"a100": 12, "h100": 18, "b200": 18}
# By model: the ids of each kind with a scope, and the ids by link of the others.
SCOPED = {
    "a100": {"replay": 161, "recovery": 162},
    "h100": {"replay": 161, "recovery": 162},
    "b200": {"malformed_packet": 206, "buffer_overrun": 207, "recovery_failed": 214},
}
OLD = {
    "replay": (*range(46, 52), *range(108, 114)),
    "recovery": (*range(53, 59), *range(114, 120)),
    "ecc_data": tuple(range(148, 160)),
}
VALUE = struct.Struct("=IIQqIIQ")  # nvmlFieldValue_t


class World:
    """GPUs with drawn errors, ends and lacks, as a scenario and as the truth by GPU."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.model = rng.choice([*LINKS])
        self.count = rng.randint(2, 5)
        self.lacks: set[int] = set()  # fields
        ids = [*SCOPED[self.model].values(), *(number for row in OLD.values() for number in row)]
        if rng.random() < 0.4:
            self.lacks = {number for number in ids if rng.random() < 0.3}
        self.missing = [name for name in (TYPE, ADDRESS) if rng.random() < 0.2]
        self.fails = {name: rng.randrange(self.count) for name in (TYPE, ADDRESS) if rng.random() < 0.3}
        kinds = [*SCOPED[self.model]] + (["ecc_data"] if self.model != "b200" else [])
        self.errors: list[dict[str, int]] = []
        self.on: list[list[int]] = []
        self.peers: list[int | None] = []
        for _ in range(self.count):
            bad = rng.random() < 0.7
            self.errors.append({k: rng.choice([1, 11, 400, 10**6]) for k in kinds if rng.random() < 0.6} if bad else {})
            self.on.append(sorted(rng.sample(range(LINKS[self.model]), rng.choice([1, 2, 3, 5]))))
            self.peers.append(rng.choice([None, rng.randrange(self.count)]))

    @property
    def scenario(self) -> str:
        gpus = [
            f"{{model: {self.model}, unsupported_fields: {sorted(self.lacks)}, nvlink_peer: "
            f"{'null' if peer is None else peer}, health: {{nvlink_errors: {{"
            f"{', '.join(f'{kind}: {n}' for kind, n in errors.items())}}}, nvlink_error_links: {links}}}}}"
            for errors, links, peer in zip(self.errors, self.on, self.peers, strict=True)
        ]
        faults = [f"{{call: {name}, gpu: {gpu}, code: unknown}}" for name, gpu in self.fails.items()]
        return (
            f"driver: {{version: 580.95.05, missing: [{', '.join(self.missing)}]}}\n"
            f"gpus: [{', '.join(gpus)}]\nfaults: [{', '.join(faults)}]"
        )

    def known(self, kind: str, link: int) -> bool:
        """Whether the driver has the errors of a kind of one link."""
        scoped = SCOPED[self.model].get(kind)
        if scoped is not None and scoped not in self.lacks:
            return True
        old = OLD.get(kind, ())
        return self.model != "b200" and link < len(old) and old[link] not in self.lacks

    def totals(self, gpu: int) -> dict[str, int]:
        """Return the errors of all links of a GPU; of NVLink 5 they have the same ids as those by link."""
        lacks = {kind for kind, number in SCOPED["b200"].items() if number in self.lacks}
        return {kind: n for kind, n in self.errors[gpu].items() if kind not in lacks}

    def counted(self, gpu: int) -> dict[int, Counter[str]]:
        """Return the errors of a GPU by link and kind, dealt out one link after the other."""
        found: dict[int, Counter[str]] = {}
        for kind, n in self.errors[gpu].items():
            for place, link in enumerate(self.on[gpu]):
                share = n // len(self.on[gpu]) + (n % len(self.on[gpu]) if place == 0 else 0)
                if share and self.known(kind, link):
                    found.setdefault(link, Counter())[kind] = share
        return found

    def answers(self, function: str, gpu: int) -> bool:
        return function not in self.missing and self.fails.get(function) != gpu

    def end(self, gpu: int) -> str:
        """Return the words of the other end of all links of a GPU, "" if the driver does not give them."""
        peer = self.peers[gpu]
        if peer is None and self.answers(TYPE, gpu):
            return "an NVSwitch"
        if not self.answers(ADDRESS, gpu):
            return ""
        return "0007:01:00.0" if peer is None else f"GPU {peer}"


def devices_of(nvml: Nvml, count: int) -> list[Device]:
    found = []
    for index in range(count):
        values, _ = nvml.read(index, ["static", "slow"])
        found.append(Device(f"GPU-{index}", True, "ok", DeviceReading.of(values.values()), {}))
    return found


def words_of(device: Device, devices: list[Device]) -> tuple[str, str]:
    """Return the text of the fault of the links, and what follows its summary."""
    found = [f for f in ailments(health_of(device, devices)) if f.runbook == "GpuNvlinkErrors"]
    return (found[0].text, found[0].where) if found else ("", "")


def test_errors_of_which_the_links_are_asked_are_those_that_should_not_occur() -> None:
    assert frozenset(NVLINK_NEVER) == RARE


@cases(
    ("links", "where"),
    [
        ({"3": (2, "GPU 5")}, "on link 3 (to GPU 5)"),
        ({"10": (2, ""), "9": (3, "an NVSwitch")}, "on links 9 (to an NVSwitch), 10"),
        ({str(link): (10**link, "") for link in range(7)}, "on links 6, 5, 4 and 4 more"),
    ],
)
def test_the_words_name_the_links_with_the_most_errors(links: dict[str, tuple[int, str]], where: str) -> None:
    (fault,) = ailments(GpuHealth(nvlink_errors={"recovery": 2}, links=links, nvlink_grown=60.0))
    last = "the last at 1970-01-01 00:01 UTC"

    assert fault.text == f"NVLink errors since the driver was loaded: 2 recovery, {where}; {last}"
    assert fault.where == where


def test_an_address_that_is_no_text_is_not_known() -> None:
    health = "health: {nvlink_errors: {replay: 40}, nvlink_error_links: [3]}"
    nvml = opened(
        f"gpus: [{{model: h100}}, {{model: h100, nvlink_peer: 0, {health}}}]\nfaults: [{{call: {ADDRESS}, value: 255}}]"
    )

    values, _ = nvml.read(1, ["static", "slow"])

    assert (values["slow"]["nvlink_link_errors"], values["slow"]["nvlink_ends"]) == ({"3": {"replay": 40}}, {})


def test_the_label_stays_while_errors_grow() -> None:
    growing = [GpuHealth(nvlink_errors={"replay": n}, links={"5": (n, ""), "3": (n // 10, "")}) for n in range(20, 100)]

    assert {fault.where for health in growing for fault in ailments(health)} == {"on links 5, 3"}


@seeds(range(200))
def test_drawn_errors(seed: int) -> None:
    world = World(seed)
    nvml = opened(world.scenario)
    for _ in range(2):
        devices = devices_of(nvml, world.count)
        for gpu, device in enumerate(devices):
            counted = world.counted(gpu)
            found = device.reading.nvlink_link_errors
            assert found == ({str(link): dict(kinds) for link, kinds in counted.items()} or None), gpu
            text, where = words_of(device, devices)
            totals = world.totals(gpu)
            assert bool(text) == (bool(totals.keys() - {"replay"}) or totals.get("replay", 0) >= 10), gpu
            if not (text and counted):
                assert where == "", gpu
                continue
            named = where.removeprefix("on link").removeprefix("s").split(" and ")
            links = [int(each.split()[0]) for each in named[0].split(", ")]
            end = world.end(gpu)
            assert named[0].strip() == ", ".join(f"{link} (to {end})" if end else f"{link}" for link in links)
            assert len(links) == min(3, len(counted))
            assert named[1:] == ([f"{len(counted) - 3} more"] if len(counted) > 3 else [])
            least = min(sum(counted[link].values()) for link in links)
            left = [sum(kinds.values()) for link, kinds in counted.items() if link not in links]
            assert 10 * least > max(left, default=0)
            assert text.endswith(f", {where}")


@seeds(range(20))
def test_a_failure_costs_nothing_else(seed: int) -> None:
    world = World(seed)
    bad = opened(world.scenario)
    without = [bad.read(index, ["static", "slow"]) for index in range(world.count)]
    world.missing, world.fails, world.lacks = [], {}, set()
    good = opened(world.scenario)
    for index, (values, errors) in enumerate(without):
        wanted, none = good.read(index, ["static", "slow"])
        own = {"nvlink_link_errors", "nvlink_ends"}
        for group in wanted:
            assert {k: v for k, v in values[group].items() if k not in own} == {
                k: v for k, v in wanted[group].items() if k not in own
            }
        assert errors == none


class Counting(Driver):
    """The simulated library; `calls` counts those of the functions about links."""

    def __init__(self, nvml: Nvml) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        use_library(self)
        nvml.open()

    def __getattr__(self, name: str) -> Any:
        function = super().__getattr__(name)
        if name not in {TYPE, ADDRESS, "nvmlDeviceGetFieldValues"}:
            return function

        def counted(*arguments: Any) -> int:
            self.calls[name] += 1
            return int(function(*arguments))

        return counted


def test_a_healthy_gpu_is_asked_nothing_more() -> None:
    nvml, clock = clocked("gpus: {model: h100, health: {nvlink_errors: {crc_flit: 40}}}")
    driver = Counting(nvml)
    for clock.now in (0.0, 30.0, 60.0):
        nvml.read(0, ["static", "slow"])

    assert driver.calls == {"nvmlDeviceGetFieldValues": 4}  # with the number of links


def test_each_end_is_read_once() -> None:
    nvml, clock = clocked("gpus: [{model: h100, health: {nvlink_errors: {replay: 40}, nvlink_error_links: [3, 5]}}]")
    driver = Counting(nvml)
    for clock.now in (0.0, 30.0, 60.0):
        nvml.read(0, ["static", "slow"])

    assert driver.calls == {"nvmlDeviceGetFieldValues": 7, TYPE: 2}
    nvml.close()
    nvml.open()
    nvml.read(0, ["static", "slow"])
    assert driver.calls[TYPE] == 4


@cases(("code", "times"), [("unknown", 3), ("not_supported", 1), ("invalid_argument", 1)])
def test_an_end_that_is_not_known_is_read_again_unless_that_is_final(code: str, times: int) -> None:
    nvml, clock = clocked(
        "gpus: [{model: h100, health: {nvlink_errors: {replay: 40}, nvlink_error_links: [3]}}]\n"
        f"faults: [{{call: {TYPE}, code: {code}}}, {{call: {ADDRESS}, code: {code}}}]"
    )
    driver = Counting(nvml)
    for clock.now in (0.0, 30.0, 60.0):
        values, _ = nvml.read(0, ["static", "slow"])

    assert values["slow"]["nvlink_link_errors"] == {"3": {"replay": 40}}
    assert values["slow"]["nvlink_ends"] == {}
    assert driver.calls[ADDRESS] == times


def changed(answer: Any) -> None:
    """Let `answer` return the code and value of a field value by number and scope; None for that of the simulator."""
    simulated = used_library().nvmlDeviceGetFieldValues  # type: ignore[attr-defined]  # a simulated library

    def field_values(handle: Any, count: int, values: Any) -> int:
        code = int(simulated(handle, count, values))
        for offset in range(0, getattr(count, "value", count) * VALUE.size, VALUE.size):
            number, scope, *_ = VALUE.unpack_from(values._obj, offset)
            if (found := answer(number, scope)) is not None:
                VALUE.pack_into(values._obj, offset, number, scope, 0, 0, 3, *found)
        return code

    use_library(Driver(nvmlDeviceGetFieldValues=field_values))


def test_a_driver_that_ignores_the_link_has_no_errors_by_link() -> None:
    nvml = opened("gpus: [{model: b200, health: {nvlink_errors: {recovery_failed: 3, buffer_overrun: 1}}}]")
    changed(lambda number, scope: (0, 3) if number == 214 and scope < 18 else None)

    values, _ = nvml.read(0, ["static", "slow"])

    assert values["slow"]["nvlink_errors"]["recovery_failed"] == 3
    assert values["slow"]["nvlink_link_errors"] == {"0": {"buffer_overrun": 1}}


def test_a_link_without_an_answer_keeps_its_errors_until_a_reset() -> None:
    clock = Clock()
    nvml = opened(
        "gpus: [{model: h100, health: {nvlink_errors: {replay: 40, recovery: 1}, nvlink_error_links: [3, 4], "
        "reset_at: 70, since: 5}}]",
        clock,
    )
    found = []
    changed(lambda number, scope: (999, 0) if scope == 3 and number == 161 and clock.now == 40.0 else None)
    for clock.now in (0.0, 10.0, 40.0, 50.0, 80.0, 110.0):
        found.append(nvml.read(0, ["static", "slow"])[0]["slow"].get("nvlink_link_errors"))

    on_both = {"3": {"replay": 20, "recovery": 1}, "4": {"replay": 20}}
    assert found == [None, on_both, on_both, on_both, None, None]
