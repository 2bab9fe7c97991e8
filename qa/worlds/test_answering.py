"""A driver that answers badly, as drawn: page, status and metrics say what was injected, soon, and no more after it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.drawn import cases, draws, seeds
from tests.simulator.build import Clock, opened

from qa.worlds.answering import Moment, moments

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
LACKS = {3, 13, 25}  # also the answer of a GPU that does not have the reading
EVERYTHING, EVENTS, PROCESSES = "*", "nvmlEventSetWait_v2", "nvmlDeviceGet*RunningProcesses*"
# What is lost with a function: the part, and a series that is then absent.
LOST = {
    EVENTS: ("events", None),
    PROCESSES: ("processes", "gpu_process_memory_used_bytes"),
    "nvmlDeviceGetUtilizationRates": ("utilization", None),
    "nvmlDeviceGetSamples": ("samples", None),  # the percentages replace them
    "nvmlDeviceGetMemoryInfo*": ("memory", "gpu_memory_used_bytes"),
    "nvmlDeviceGetPowerUsage": ("power", "gpu_power_watts"),
    "nvmlDeviceGetTemperature*": ("temperature", None),
    "nvmlDeviceGetClockInfo": ("clocks", "gpu_clock_hertz"),
    "nvmlDeviceGetFieldValues": ("ecc", "gpu_ecc_errors_total"),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie", None),
    "nvmlGpmSampleGet": ("profiling", "gpu_sm_active_ratio"),
    "nvmlDeviceGetNvLinkState": ("nvlink", "gpu_nvlink_active"),
}
GPUS = 2
TEXT = """
gpus: {model: h100, count: 2}
processes: [{pid: 7, gpus: [0, 1], memory: 20GiB, load: 0.6}]
faults: [{FAULT}]
"""
SOON = 31.0  # seconds, and the interval of what is compared
CALM = 40.0
SAID = {"GpuLost", "GpuReadingFailed"}


@dataclass(frozen=True)
class Draw:
    function: str
    gpu: int | None  # None: all
    begin: float
    seconds: float
    code: int = 0
    every: int = 1
    delay: float = 0.0

    @property
    def end(self) -> float:
        return self.begin + self.seconds

    @property
    def text(self) -> str:
        keys = [] if self.function == EVERYTHING else [f'call: "{self.function}"']
        keys += [] if self.gpu is None else [f"gpu: {self.gpu}"]
        keys += [f"start: {self.begin}, end: {self.end}"]
        keys += [f"delay: {self.delay}"] if self.delay else [f"code: {self.code}, every: {self.every}"]
        return TEXT.replace("FAULT", ", ".join(keys))

    @property
    def all_down(self) -> bool:
        return self.function == EVERYTHING and self.gpu is None and not self.delay and self.every == 1

    def has(self, gpu: int) -> bool:
        return self.gpu in {None, gpu}


def drawn(rng: random.Random) -> Draw:
    begin = rng.choice([0.0, 40.0 + round(rng.uniform(0, 30), 1)])
    seconds = rng.choice([3.0, 20.0, 50.0, 50.0, 50.0, 110.0])
    if rng.random() < 0.2:
        return Draw(EVERYTHING, rng.randrange(GPUS), begin, seconds, delay=rng.choice([0.02, 0.05, 0.3, 0.6, 1.5]))
    function = rng.choice([EVERYTHING, EVERYTHING, *LOST])
    gpu = None if function == EVENTS or rng.random() < 0.3 else rng.randrange(GPUS)
    return Draw(function, gpu, begin, seconds, rng.choice(list(CODES)), rng.choice([1, 1, 1, 2, 10]))


def failed(moment: Moment, gpu: int) -> dict[str, str]:
    uuid = moment.gpu(gpu)["uuid"]
    return {reading: reason for (u, reading, reason) in moment.of("gpu_reading_failed") if u == uuid}


def has(moment: Moment, name: str, gpu: int) -> bool:
    uuid = moment.gpu(gpu)["uuid"]
    return any(uuid in labels for labels in moment.of(name))


def check_well(moment: Moment, gpu: int) -> None:
    """Check that a GPU without a fault has all its values and no problem."""
    entry = moment.gpu(gpu)
    assert entry["up"], (gpu, entry["down_reason"])
    assert failed(moment, gpu) == {}, gpu
    problems = [p["text"] for p in moment.facts["problems"] if entry["uuid"] in p["gpus"] and p["runbook"] in SAID]
    assert not problems, problems
    if moment.second > 10:
        for name in filter(None, (name for _, name in LOST.values())):
            assert has(moment, name, gpu), (name, gpu)
        assert entry["state_words"] == "in use", (gpu, entry["state_words"])
        assert moment.of("gpu_memory_used_bytes")[entry["uuid"],] >= 20 << 30


def check_slow(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a slow GPU."""
    entry, said = moment.gpu(gpu), failed(moment, gpu)
    if draw.delay >= 0.3:
        assert "too_slow" in said.values() or entry["down_reason"] in {"too_slow", "hangs"}, (said, entry["up"])
        assert entry["state_words"] in {"slow", "down"}
        # The calls that are not about a GPU are not slow.
        assert not entry["up"] or moment.of("gpu_reading_seconds")[entry["uuid"],] > 0.3 * draw.delay


def check_blinking(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a GPU some of whose calls fail."""
    entry, said = moment.gpu(gpu), failed(moment, gpu)
    assert entry["up"], entry["down_reason"]
    part, series = LOST.get(draw.function, ("", None))
    if draw.every == 10 and part:
        assert said == {}
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


def check_part(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a GPU of which a part cannot be read."""
    entry, said = moment.gpu(gpu), failed(moment, gpu)
    assert entry["up"], entry["down_reason"]
    part, series = LOST[draw.function]
    lacks = draw.begin == 0 and draw.code in {2, *LACKS}
    if lacks or (draw.function == "nvmlDeviceGetSamples" and draw.code == 6):
        assert said.get(part) in {None, CODES[draw.code]}
    elif draw.function == "nvmlDeviceGetNvLinkState" and draw.code in {2, *LACKS}:
        assert part in said
    else:
        assert said.get(part) == CODES[draw.code], said
        problems = [p for p in moment.facts["problems"] if entry["uuid"] in p["gpus"]]
        assert any("cannot be read" in f"{p['text']} {p['detail']}" for p in problems)
        # The samples still name the processes that compute.
        assert entry["state_words"] in ({"unknown", "in use"} if draw.function == PROCESSES else {"in use"})
    assert not series or not has(moment, series, gpu) or draw.code == 6, series


def check_faulty(moment: Moment, draw: Draw, gpu: int) -> None:
    """Check what is said about a GPU in the midst of a fault."""
    if draw.delay:
        check_slow(moment, draw, gpu)
    elif draw.every > 1:
        check_blinking(moment, draw, gpu)
    elif draw.function == EVERYTHING:
        check_down(moment, draw, gpu)
    elif draw.function != EVENTS or draw.code != 10:  # there are no events
        check_part(moment, draw, gpu)


def check_node(moment: Moment, draw: Draw, *, midst: bool, calm: bool) -> None:
    """Check what is said about the driver and its events."""
    (((reason,), up),) = moment.of("gpugauge_driver_up").items()
    if draw.all_down and midst:
        assert (up, reason) == (0, CODES[draw.code])
        assert "driver" in {problem["kind"] for problem in moment.facts["problems"]}
    elif calm:
        assert up == 1, reason
    source = moment.of("gpugauge_event_source_up")[("nvml",)]
    if draw.function == EVENTS and midst and draw.every == 1 and draw.code != 10:
        assert source == 0
    elif calm and moment.second > 1:
        assert source == 1


@seeds(draws(75, 2000))
def test_what_the_driver_fails_to_answer_is_said(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, tmp_path, monkeypatch)


def check(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    draw = drawn(rng)
    step = rng.choice([5.0] * 7 + [1.0])
    errors = 0.0
    for moment in moments(draw.text, tmp_path, monkeypatch, draw.end + CALM, step):
        midst = draw.begin + SOON < moment.second < draw.end
        calm = moment.second < draw.begin or moment.second > draw.end + SOON
        try:
            check_node(moment, draw, midst=midst, calm=calm)
            # GPUs that were never read, and cannot be, are not known.
            for gpu in range(GPUS) if not draw.all_down or calm or (midst and draw.begin) else ():
                if (not draw.has(gpu) or calm) and moment.second > 1:
                    check_well(moment, gpu)
                elif midst:
                    check_faulty(moment, draw, gpu)
        except (AssertionError, StopIteration, KeyError) as error:
            raise AssertionError(f"{draw}, step {step}, second {moment.second}: {error!r}") from error
        errors = sum(moment.of("gpugauge_driver_errors_total").values())
    counted = draw.function not in {EVERYTHING, "nvmlDeviceGetNvLinkState"}  # one link of many that fails is left out
    if draw.code not in {0, 2, 6, 10, *LACKS} and draw.seconds > 20 and draw.every == 1 and counted:
        assert errors > 0, draw


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
    assert wrong == [(None, -1 if fails else None)] * 2


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
