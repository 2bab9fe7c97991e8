"""A driver that answers badly, as drawn: page, status and metrics say what was injected, soon, and no more after it."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import cases, draws, seeds
from tests.needs import need
from tests.simulator.build import Clock, opened

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.snapshot import Snapshot
from qa.bench.alerts.replay import replay
from qa.worlds.answering import Moment, moments
from qa.worlds.fault_histories import SCRAPE, story_of

# nvmlReturn_t, and the names that the metrics give the codes.
CODES = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    5: "already_initialized",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "library_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    22: "code_22",
    23: "insufficient_resources",
    24: "freq_not_supported",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    30: "reset_type_not_supported",
    31: "code_31",
    999: "unknown",
}
DENIED = 4
LACKS = {3, 13, 25}  # also the answer of a GPU that does not have the reading
EVERYTHING, EVENTS, PROCESSES, MIG = (
    "*",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGet*RunningProcesses*",
    "nvmlDeviceGetMigMode",
)
# What is lost with a function: the part, and a series that is then absent.
LOST = {
    EVENTS: ("events", None),
    PROCESSES: ("processes", "gpu_process_memory_used_bytes"),
    "nvmlDeviceGetUtilizationRates": ("utilization", None),
    "nvmlDeviceGetSamples": ("samples", None),  # the percentages replace them
    "nvmlDeviceGetMemoryInfo*": ("memory", "gpu_memory_used_bytes"),
    "nvmlDeviceGetBAR1MemoryInfo": ("memory", "gpu_bar1_used_bytes"),
    "nvmlDeviceGetPowerUsage": ("power", "gpu_power_watts"),
    "nvmlDeviceGetTotalEnergyConsumption": ("power", "gpu_energy_joules_total"),
    "nvmlDeviceGetTemperature*": ("temperature", None),
    "nvmlDeviceGetClockInfo": ("clocks", "gpu_clock_hertz"),
    "nvmlDeviceGetPerformanceState": ("clocks", "gpu_performance_state"),
    "nvmlDeviceGetFieldValues": ("ecc", "gpu_ecc_errors_total"),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie", None),
    "nvmlDeviceGetComputeMode": ("modes", "gpu_compute_mode"),
    "nvmlGpmSampleGet": ("profiling", "gpu_sm_active_ratio"),
    "nvmlDeviceGetNvLinkState": ("nvlink", "gpu_nvlink_active"),
}
# Of a GPU with MIG devices.
LOST_OF_MIG = dict.fromkeys((MIG, "nvmlDeviceGetMaxMigDeviceCount"), ("mig", "gpu_mig_info"))
# Values that cannot be true, and the member of the structure that has them. Others of the function go with them.
GARBAGE_OF = {
    "nvmlDeviceGetMemoryInfo*": (160 << 30, "used"),
    "nvmlDeviceGetBAR1MemoryInfo": (1 << 40, "bar1Used"),
    "nvmlDeviceGetTotalEnergyConsumption": (1 << 61, None),
    "nvmlDeviceGetPowerUsage": (0xFFFFFFFF, None),
    "nvmlDeviceGetTemperature*": (255, "temperature"),
    "nvmlDeviceGetUtilizationRates": (255, None),
    "nvmlDeviceGetClockInfo": (1 << 31, None),
    "nvmlDeviceGetPerformanceState": (32, None),
    "nvmlDeviceGetFieldValues": (1 << 61, None),
    "nvmlDeviceGetCurrPcieLinkWidth": (255, None),
    "nvmlDeviceGetComputeMode": (1000, None),
    "nvmlDeviceGetSamples": (200, None),
    "nvmlDeviceGetNvLinkState": (7, None),
    PROCESSES: (1 << 49, "usedGpuMemory"),
    "nvmlGpmMetricsGet": (1 << 40, None),  # not about a GPU
}
IMPLAUSIBLE = "implausible_value"
GPUS = 2
SOON = 31.0  # seconds, and the interval of what is compared
CALM = 40.0
HANG = 3600.0
SAID = {"GpuLost", "GpuReadingFailed"}


@dataclass(frozen=True)
class Draw:
    """A fault: a code, a `delay` in seconds of each call, or a `value` in place of what the driver returns."""

    function: str
    gpu: int | None  # None: all
    begin: float
    seconds: float
    code: int = 0
    every: int = 1
    delay: float = 0.0
    value: int | None = None
    member: str | None = None

    @property
    def end(self) -> float:
        return self.begin + self.seconds

    @property
    def text(self) -> str:
        keys = [] if self.function == EVERYTHING else [f'call: "{self.function}"']
        keys += [] if self.gpu is None else [f"gpu: {self.gpu}"]
        keys += [f"start: {self.begin}, end: {self.end}"]
        keys += [f"delay: {self.delay}"] if self.delay else []
        keys += [f"code: {self.code}, every: {self.every}"] if self.code else []
        keys += [] if self.value is None else [f"value: {self.value}"]
        keys += [f"member: {self.member}"] if self.member else []
        return f"{{{', '.join(keys)}}}"

    @property
    def answers_nothing(self) -> bool:
        return self.function == EVERYTHING and bool(self.code) and self.every == 1

    @property
    def lost(self) -> tuple[str, str | None]:
        """The part that is lost with the function, and a series that is then absent."""
        return {**LOST, **LOST_OF_MIG, "nvmlGpmMetricsGet": LOST["nvmlGpmSampleGet"]}.get(self.function, ("", None))

    def has(self, gpu: int) -> bool:
        return self.gpu in {None, gpu}

    def is_midst(self, second: float) -> bool:
        return self.begin + SOON < second < self.end

    def is_calm(self, second: float) -> bool:
        # A GPU that hangs is quarantined for ever longer.
        return second < self.begin or second > self.end + SOON + (self.seconds + 2 * SOON) * (self.delay == HANG)


@dataclass(frozen=True)
class World:
    """What is drawn: faults, the seconds between two looks, the age at which a worker is replaced, and MIG."""

    draws: tuple[Draw, ...]
    step: float
    age: float = 0.0
    mig: bool = False
    gpus: int = GPUS

    @property
    def text(self) -> str:
        mig = "  - {model: h100, mig: [{profile: 3g.40gb}, {profile: 1g.10gb}]}\n" if self.mig else ""
        faults = "".join(f"  - {draw.text}\n" for draw in self.draws)
        used = f"[{{pid: 7, gpus: {list(range(self.gpus))}, memory: 20GiB, load: 0.6}}]"
        return f"gpus:\n  - {{model: h100, count: {self.gpus}}}\n{mig}processes: {used}\nfaults:\n{faults}"

    def is_mig(self, gpu: int) -> bool:
        return self.mig and gpu == self.gpus

    def judges(self, draw: Draw, gpu: int) -> bool:
        """Return whether it is known what a fault means for a GPU: one with MIG devices lacks most readings, and one
        that has denied access from the start is counted by NVML, but belongs to another container.
        """
        foreign = draw.answers_nothing and draw.code == DENIED and not draw.begin
        return draw.has(gpu) and not foreign and (not self.is_mig(gpu) or draw.function in (EVERYTHING, *LOST_OF_MIG))

    @property
    def all_down(self) -> Draw | None:
        """The fault with which nothing can be read of any GPU."""
        return next((draw for draw in self.draws if draw.answers_nothing and draw.gpu is None), None)


def drawn(rng: random.Random) -> World:
    """Return a drawn world: mostly with one fault, sometimes with two at a time."""
    age, mig = rng.choice([0.0] * 4 + [17.0]), rng.random() < 0.2
    draws = [drawn_fault(rng, mig=mig)]
    if rng.random() < 0.25:
        first, second = draws[0], drawn_fault(rng, mig=mig)
        # Several functions of one GPU, or faults of two; a fault of everything hides the others.
        apart = {first.gpu, second.gpu} == {0, 1}
        parts = first.lost[0] != second.lost[0] and all(
            d.code and d.function not in {EVERYTHING, "nvmlDeviceGetFieldValues"} for d in (first, second)
        )
        alone = all(d.answers_nothing or d.delay for d in (first, second))
        draws += [second] if (apart and not alone) or parts else []
    return World(tuple(draws), rng.choice([5.0] * 7 + [1.0]), age, mig)


def drawn_fault(rng: random.Random, *, mig: bool) -> Draw:
    begin = rng.choice([0.0, 40.0 + round(rng.uniform(0, 30), 1)])
    seconds = rng.choice([3.0, 20.0, 50.0, 50.0, 50.0, 110.0])
    gpu = None if rng.random() < 0.3 else rng.randrange(GPUS)
    kind = rng.random()
    if kind < 0.15:
        delay = rng.choice([0.02, 0.05, 0.3, 0.6, 1.5])
        return Draw(EVERYTHING, gpu, begin, seconds, delay=delay)
    if kind < 0.2:
        function = rng.choice(["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo*", EVERYTHING])
        return Draw(function, rng.randrange(GPUS), max(40.0, begin), seconds, delay=HANG)
    if kind < 0.25:
        return Draw(rng.choice(list(LOST)[2:]), gpu, begin, seconds, delay=rng.choice([0.3, 0.8]))
    if kind < 0.4:
        function, (value, member) = rng.choice(list(GARBAGE_OF.items()))
        gpu = None if function == "nvmlGpmMetricsGet" else gpu
        return Draw(function, gpu, begin, seconds, value=value, member=member)
    code, every = rng.choice(list(CODES)), rng.choice([1, 1, 1, 2, 10])
    if mig and rng.random() < 0.5:
        return Draw(rng.choice(list(LOST_OF_MIG)), GPUS, begin, seconds, code)
    function = rng.choice([EVERYTHING] * 4 + list(LOST))
    return Draw(function, None if function == EVENTS else gpu, begin, seconds, code, every)


def failed(moment: Moment, gpu: int) -> dict[str, str]:
    uuid = moment.gpu(gpu)["uuid"]
    return {reading: reason for (u, reading, reason) in moment.of("gpu_reading_failed") if u == uuid}


def has(moment: Moment, name: str, gpu: int) -> bool:
    uuid = moment.gpu(gpu)["uuid"]
    return any(uuid in labels for labels in moment.of(name))


def check_well(moment: Moment, gpu: int, *, mig: bool = False) -> None:
    """Check that a GPU without a fault has all its values and no problem."""
    entry = moment.gpu(gpu)
    assert entry["up"], (gpu, entry["down_reason"])
    assert failed(moment, gpu) == {}, gpu
    problems = [p["text"] for p in moment.facts["problems"] if entry["uuid"] in p["gpus"] and p["runbook"] in SAID]
    assert not problems, problems
    if moment.second > 10 and not mig:
        for name in filter(None, (name for _, name in LOST.values())):
            assert has(moment, name, gpu), (name, gpu)
        assert entry["state_words"] == "in use", (gpu, entry["state_words"])
        assert moment.of("gpu_memory_used_bytes")[entry["uuid"],] >= 20 << 30
    elif moment.second > 10:
        assert len(moment.of("gpu_mig_info")) == 2


def check_slow(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a slow GPU."""
    entry, said = moment.gpu(gpu), failed(moment, gpu)
    if draw.delay == HANG:
        assert (entry["up"], entry["down_reason"], entry["state_words"]) == (False, "hangs", "down")
    elif draw.function != EVERYTHING:  # the other calls have time enough
        assert entry["up"], entry["down_reason"]
    elif draw.delay >= 0.3:
        assert "too_slow" in said.values() or entry["down_reason"] in {"too_slow", "hangs"}, (said, entry["up"])
        assert entry["state_words"] in {"slow", "down"}
        # The calls that are not about a GPU are not slow.
        assert not entry["up"] or moment.of("gpu_reading_seconds")[entry["uuid"],] > 0.3 * draw.delay


def check_blinking(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a GPU some of whose calls fail."""
    entry, said = moment.gpu(gpu), failed(moment, gpu)
    assert entry["up"], entry["down_reason"]
    part, series = draw.lost
    if draw.every == 10 and part:
        assert part not in said
    elif series:  # it depends on the number of calls: the value is there, or said to be missing
        assert has(moment, series, gpu) or part in said


def check_down(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a GPU of which nothing can be read."""
    entry = moment.gpu(gpu)
    down = "driver_down" if draw.gpu is None and draw.code not in {15, 16} else CODES[draw.code]
    assert (entry["up"], entry["down_reason"], entry["state_words"]) == (False, down, "down")
    assert not has(moment, "gpu_memory_used_bytes", gpu)
    assert any(entry["uuid"] in problem["gpus"] for problem in moment.facts["problems"])
    assert entry["advice"] or draw.gpu is None


def check_part(moment: Moment, draw: Draw, gpu: int, others: Iterable[Draw] = ()) -> None:
    """Check what is said about a GPU of which a part cannot be read."""
    entry, said = moment.gpu(gpu), failed(moment, gpu)
    assert entry["up"], entry["down_reason"]
    part, series = draw.lost
    code = CODES[draw.code] if draw.code else IMPLAUSIBLE
    lacks = draw.begin == 0 and draw.code in {2, *LACKS}
    if lacks or (draw.function == "nvmlDeviceGetSamples" and draw.code == 6):
        assert said.get(part) in {None, code}
    elif draw.function == "nvmlDeviceGetNvLinkState" and draw.code in {2, *LACKS}:
        assert part in said
    else:
        assert said.get(part) == code, said
        problems = [p for p in moment.facts["problems"] if entry["uuid"] in p["gpus"]]
        assert any("cannot be read" in f"{p['text']} {p['detail']}" for p in problems)
        # The samples still name the processes that compute.
        unknown = any(each.function == PROCESSES for each in (draw, *others))
        assert entry["state_words"] in ({"unknown", "in use"} if unknown else {"free" if part == "mig" else "in use"})
    assert not series or not has(moment, series, gpu) or draw.code == 6, series


def check_faulty(moment: Moment, draw: Draw, gpu: int, others: Sequence[Draw] = ()) -> None:
    """Check what is said about a GPU in the midst of a fault."""
    if draw.delay:
        check_slow(moment, draw, gpu)
    elif draw.every > 1:
        check_blinking(moment, draw, gpu)
    elif draw.function == EVERYTHING:
        check_down(moment, draw, gpu)
    elif draw.function != EVENTS or draw.code != 10:  # there are no events
        check_part(moment, draw, gpu, others)


def check_gpu(moment: Moment, world: World, gpu: int) -> None:
    """Check what is said about a GPU, unless a fault of it has just begun or ended."""
    own = [draw for draw in world.draws if draw.has(gpu) and not draw.is_calm(moment.second)]
    whole = [draw for draw in own if draw.answers_nothing]
    for draw in whole or own:
        if draw.is_midst(moment.second) and world.judges(draw, gpu):
            check_faulty(moment, draw, gpu, own)
    if not own and moment.second > 1:
        check_well(moment, gpu, mig=world.is_mig(gpu))


def check_node(moment: Moment, world: World) -> None:
    """Check what is said about the driver and its events."""
    (((reason,), up),) = moment.of("gpugauge_driver_up").items()
    calm = all(draw.is_calm(moment.second) for draw in world.draws)
    if (down := world.all_down) and down.is_midst(moment.second):
        assert (up, reason) == (0, CODES[down.code])
        assert "driver" in {problem["kind"] for problem in moment.facts["problems"]}
    elif calm:
        assert up == 1, reason
    source = moment.of("gpugauge_event_source_up")[("nvml",)]
    events = [draw for draw in world.draws if draw.function == EVENTS and draw.every == 1 and draw.code != 10]
    if any(draw.is_midst(moment.second) for draw in events):
        assert source == 0
    elif calm and moment.second > 1:
        assert source == 1


def check(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check all that is said in a world, at each step."""
    until = max(draw.end + (draw.seconds + 2 * SOON) * (draw.delay == HANG) for draw in world.draws) + CALM
    for moment in moments(world.text, tmp_path, monkeypatch, until, world.step, world.age):
        down = world.all_down
        # GPUs that were never read, and cannot be, are not known.
        known = not down or down.is_calm(moment.second) or (down.is_midst(moment.second) and down.begin)
        try:
            check_node(moment, world)
            for gpu in range(world.gpus + world.mig) if known else ():
                check_gpu(moment, world, gpu)
        except (AssertionError, StopIteration, KeyError) as error:
            raise AssertionError(f"{world}, second {moment.second}: {error!r}") from error
    counted = moment.of("gpugauge_driver_errors_total")
    uuids = {gpu: moment.gpu(gpu)["uuid"] for gpu in range(world.gpus + world.mig)}
    for draw in world.draws:
        # One link of many that fails is left out; what a GPU lacks is no error, nor that there is nothing new.
        if draw.code in {2, 6, 10, *LACKS} or draw.function in {EVERYTHING, "nvmlDeviceGetNvLinkState"} or draw.delay:
            continue
        if draw.seconds > 20 and draw.every == 1:
            code = CODES[draw.code] if draw.code else IMPLAUSIBLE
            found = {uuid for (uuid, _, of) in counted if of == code}
            assert {uuid for gpu, uuid in uuids.items() if world.judges(draw, gpu)} <= found, (world, counted)


@seeds(draws(300, 2000))
def test_what_the_driver_fails_to_answer_is_said(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(drawn(random.Random(seed)), tmp_path, monkeypatch)


# The rows of the table in docs/proof/reliability.md, a GPU each: what fails, and the alert that fires.
TABLE: tuple[tuple[str, Draw, str], ...] = (
    ("every call of one GPU", Draw(EVERYTHING, 0, 0, 0, code=999), "GpuLost"),
    ("one function of a GPU", Draw("nvmlDeviceGetMemoryInfo*", 1, 0, 0, code=17), "GpuReadingFailed"),
    ("the process lists", Draw(PROCESSES, 2, 0, 0, code=999), "GpuReadingFailed"),
    ("the field values", Draw("nvmlDeviceGetFieldValues", 3, 0, 0, code=15), "GpuReadingFailed"),
    ("each tenth call", Draw("nvmlDeviceGetPowerUsage", 4, 0, 0, code=4, every=10), ""),
    ("slow calls", Draw(EVERYTHING, 5, 0, 0, delay=0.3), "GpuReadingFailed"),
    (
        "what cannot be true",
        Draw("nvmlDeviceGetMemoryInfo*", 6, 0, 0, value=160 << 30, member="used"),
        "GpuReadingFailed",
    ),
    ("a call does not return", Draw("nvmlDeviceGetUtilizationRates", 7, 0, 0, delay=HANG), "GpuLost"),
)
WHOLE: tuple[tuple[str, Draw, str], ...] = (
    ("every call of all GPUs", Draw(EVERYTHING, None, 0, 0, code=999), "ExporterBlind"),
    ("the event wait", Draw(EVENTS, None, 0, 0, code=999), "GpuReadingFailed"),
)


def of_table(rows: Iterable[tuple[str, Draw, str]], begin: float, seconds: float, step: float) -> World:
    """Return a world in which the rows of a table fail at the same time, and one more GPU is well."""
    draws = tuple(replace(draw, begin=begin, seconds=seconds) for _, draw, _ in rows)
    return World(draws, step, gpus=1 + max([0, *(draw.gpu for draw in draws if draw.gpu is not None)]) + 1)


def test_every_row_of_the_table_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, rows in enumerate((TABLE, WHOLE[:1], WHOLE[1:])):
        (tmp_path / str(number)).mkdir()
        check(of_table(rows, 40.0, 50.0, 5.0), tmp_path / str(number), monkeypatch)
    text = (Path(__file__).parents[2] / "docs/proof/reliability.md").read_text(encoding="utf-8")
    for row, *_ in (*TABLE, *WHOLE):
        assert f"| {row} |" in text


@pytest.mark.everything
@pytest.mark.parametrize("rows", [TABLE, WHOLE[:1], WHOLE[1:]])
def test_every_row_of_the_table_has_its_alert(
    rows: Sequence[tuple[str, Draw, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fires while the driver fails, and after it as long as its rule says, as Prometheus evaluates the scrapes."""
    begin, end, minutes = 5, 35, 65
    world = of_table(rows, 60.0 * begin, 60.0 * (end - begin), float(SCRAPE))
    groups: dict[str, Any] = rules.groups(Parameters())
    kept = {
        rule["alert"]: rule.get("keep_firing_for", "0m")
        for g in groups["groups"]
        for rule in g["rules"]
        if "alert" in rule
    }
    wanted = {row.name for row in catalog.metrics()} & set(re.findall(r"\b[a-z]+_\w+", str(groups)))

    def scrapes() -> Iterator[tuple[int, Snapshot]]:
        for moment in moments(world.text, tmp_path, monkeypatch, 60.0 * minutes, world.step):
            yield int(moment.second // SCRAPE), moment.snapshot

    fired: dict[tuple[str, str], set[int]] = defaultdict(set)
    for run in replay(story_of("table", scrapes(), wanted, minutes), groups, need("promtool")):
        fired[run.alert, run.labels.get("index", "")] |= set(range(run.begin, run.end + 1))
    for what, draw, alert in rows:
        gpus = range(world.gpus) if draw.gpu is None and alert != "ExporterBlind" else [draw.gpu]
        for index in ["" if gpu is None else str(gpu) for gpu in gpus] if alert else []:
            # The rule of ExporterBlind is true for half of its 15 minutes after the end; each then keeps firing.
            late = 10 + int(kept[alert].removesuffix("m")) + (6 if draw.delay == HANG else 0)
            firing = fired.pop((alert, index), set())
            assert set(range(begin + 12, end - 1)) <= firing <= set(range(begin, end + late)), (what, index, firing)
    allowed = {("GpuLost", str(gpu)) for gpu in range(world.gpus)} if world.all_down else set()
    assert fired.keys() <= allowed, fired


# What a GPU answers in place of a member or a value, the field that is refused, and whether it is a failure.
GARBAGE = [
    ("nvmlDeviceGetMemoryInfo_v2", 160 << 30, "used", "memory_used_bytes", True),
    ("nvmlDeviceGetMemoryInfo_v2", 0, "total", "memory_used_bytes", False),  # it has no memory of its own
    ("nvmlDeviceGetBAR1MemoryInfo", 1 << 40, "bar1Used", "bar1_used_bytes", True),
    ("nvmlDeviceGetTotalEnergyConsumption", 1 << 61, None, "energy_millijoules", True),
    ("nvmlDeviceGetFieldValues", 1 << 61, None, "ecc_errors", True),
    ("nvmlDeviceGetFieldValues", 1 << 20, None, "retired_pages", True),
    ("nvmlDeviceGetFieldValues", 1 << 30, None, "ecc_errors", True),  # a leap
]


@cases(("call", "value", "member", "name", "fails"), GARBAGE)
def test_what_cannot_be_true_is_refused(call: str, value: int, member: str | None, name: str, fails: bool) -> None:
    key = f", member: {member}" if member else ""
    clock, model = Clock(), "t4" if name == "retired_pages" else "h100"
    nvml = opened(
        f"gpus: {{model: {model}}}\nfaults: [{{call: {call}, start: 3, end: 20, value: {value}{key}}}]", clock
    )
    found = []
    for clock.now in (0.0, 5.0, 10.0, 25.0):
        values, errors = nvml.read(0, ["normal", "slow"])
        found.append(({**values["normal"], **values["slow"]}.get(name), errors.get(name)))

    (before, none), *wrong, (after, no_error) = found
    assert before is not None is not after
    assert (none, no_error) == (None, None)
    assert wrong == [(None, IMPLAUSIBLE if fails else None)] * 2


@cases("fails", [False, True])
def test_errors_of_links_are_summed_where_there_is_no_total(fails: bool) -> None:
    """While a link is silent there is no sum: it would fall."""
    outage = ", nvlink_outages: [{link: 3, start: 5, end: 15, silent: true}]" if fails else ""
    health = f"health: {{nvlink_errors: {{replay: 48623, crc_flit: 7}}{outage}}}"
    clock = Clock()
    nvml = opened(f"gpus: [{{model: h100, unsupported_fields: [38, 45, 52, 59, 160], {health}}}]", clock)
    found = []
    for clock.now in (0.0, 10.0, 20.0):
        found.append(nvml.read(0, ["slow"])[0]["slow"].get("nvlink_errors") or {})

    assert found[0] == found[2] == {"replay": 48623, "recovery": 0, "crc_flit": 7}
    assert found[1] == ({} if fails else found[0])
