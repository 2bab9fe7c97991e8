"""The table of advice: rows, their order, and the gain in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpugauge.base.serving import ROLES
from gpugauge.node.node import Diagnosis, Gain, Judged, Memory, Node, OnDevice, Verdict
from gpugauge.sessions.session import Session
from gpugauge.status import advice
from gpugauge.status.advice import advice_of, gain_words, words, words_of_gain
from gpugauge.status.measured_advice import Subject
from gpugauge.status.model import Advice, ProcessStatus
from gpugauge.status.words import RUN_ADVICE, factor, state_words
from gpugauge.verdict import loaders
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.memory.trend import Growth
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.wire import messages as wire
from gpugauge.workload.processfiles import Bounds, HostProcess
from gpugauge.workload.procfs import Stat

GAIN = Gain(2.6, 2.2, 3.1, "gpu")
LOADING = "1. {}; 2. {}".format(*CAUSES["data_loading"].steps)


def subject(process: str = "p", gpus: Any = (), **facts: Any) -> Subject:
    """Return a process on a node with these facts about process p; those that no part has are of its status."""
    judged = Judged(Verdict("training", "inside"), gains=facts.pop("gains", {}), loader=facts.pop("diagnosis", None))
    parts: dict[str, Any] = {part: {"p": facts.pop(part)} for part in ("sessions", "memory", "hosts") if part in facts}
    facts = {"process": process, "hook": True, "state": "training", **facts}
    return Subject.of(ProcessStatus(**facts), Node(devices=gpus, judged={"p": judged}, **parts))


def session(loader: wire.Loader | None = None, *, mistakes: Any = (), **facts: str) -> Session:
    return Session(wire.Hello("s", 0, facts=facts), 1, 0, wire.Snap("s", 1, loader=loader), mistakes=dict(mistakes))


LOADER = CAUSES["data_loading"]


def test_the_main_cause_has_its_gain() -> None:
    (found,) = advice_of(subject(gains={"data_loading": GAIN}, limited_by="data_loading"))

    assert found == Advice("data_loading", "limit", LOADER.advice, GAIN, LOADER.steps)


def test_the_gain_of_another_process_or_cause_is_not_shown() -> None:
    gains = {"data_loading": GAIN}

    assert advice_of(subject("q", gains=gains, limited_by="data_loading"))[0].gain is None
    assert advice_of(subject(gains=gains, limited_by="transfer"))[0].gain is None


def test_a_training_on_the_cpu_gains_most_without_its_largest_wait() -> None:
    small = Gain(1.2, 1.1, 1.3, "cpu")
    gains = {"cpu_limited": small, "data_loading": GAIN}

    waits = advice_of(subject(gains=gains, state="training_on_cpu"))
    assert [(row.cause, row.gain) for row in waits] == [("data_loading", GAIN), ("cpu_limited", small)]
    assert advice_of(subject(gains=gains)) == []
    much = advice_of(subject(gains={"transfer": Gain(3.0, 2.9, 3.1, "gpu")}, limited_by="data_loading"))
    assert words(much) == f"{LOADING}; 3. {much[1].change} (steps about 3 times as fast)"
    (found,) = advice_of(subject(gains=gains, state="training_on_cpu", limited_by="model_on_cpu"))
    assert (found.cause, found.gain) == ("model_on_cpu", None)


def test_other_causes_with_a_gain_follow_the_main_one() -> None:
    gains = {"transfer": Gain(1.1, 1.05, 1.2, "gpu"), "contention": Gain(1.4, 1.3, 1.5, "gpu")}

    found = advice_of(subject(gains=gains, limited_by="data_loading"))
    assert [row.cause for row in found] == ["data_loading", "contention", "transfer"]
    assert words(found) == LOADING
    assert advice_of(subject(gains=gains)) == []


def test_who_has_the_hook_is_not_told_to_use_it() -> None:
    found = advice_of(
        subject(limited_by="unknown", hook=True, undecidable=("transfer", "underfilled", "precision_unused"))
    )

    assert words(found) == (
        "no measured value explains it; missing here, at least in part: performance counters (GPM: Hopper and newer)"
    )


def test_without_missing_evidence_a_profile_is_advised_on_an_unknown_cause_unless_something_gains() -> None:
    found = advice_of(subject(limited_by="unknown", hook=True))
    gaining = advice_of(subject(limited_by="unknown", hook=True, gains={"data_loading": GAIN}))

    assert words(found) == "no measured value explains it: profile with torch.profiler"
    assert [row.cause for row in gaining] == ["data_loading"]


@pytest.mark.parametrize(
    ("reason", "cause"), [(loaders.TOO_FEW_CPUS, "cpu_limited"), (loaders.MEMORY, "memory_swap_io")]
)
@pytest.mark.parametrize("main", ["itself", "data_loading"])
def test_a_limit_of_the_loader_is_not_said_again(reason: str, cause: str, main: str) -> None:
    gains = {"data_loading": GAIN, cause: GAIN}
    limited_by = cause if main == "itself" else main

    found = advice_of(subject(gains=gains, limited_by=limited_by, diagnosis=Diagnosis(reason, 2, 1.0, 1.0)))

    assert [(row.cause, row.topic) for row in found] == [(cause, "limit")]


def test_nothing_is_advised_to_a_healthy_training() -> None:
    assert advice_of(subject()) == []


@pytest.mark.parametrize(
    ("facts", "topic"),
    [
        ({"state": "stalled", "pid": 7}, "stalled"),
        ({"state": "held_idle", "level": "bad", "limited_by": "unused_gpus"}, "idle"),
        ({"state_words": "no hook"}, "hook"),
    ],
)
def test_states_with_an_advice(facts: dict[str, Any], topic: str) -> None:
    (found,) = advice_of(subject(**facts))

    assert (found.topic, found.cause, found.gain) == (topic, None, None)
    assert topic != "stalled" or "--pid 7" in found.change
    assert topic != "hook" or found.change == RUN_ADVICE


def test_what_is_no_training_or_has_a_known_state_needs_no_hook() -> None:
    cases = [*((None, role) for role in ("display", *ROLES)), ("held_idle", "notebook"), ("held_idle", "training")]
    for state, role in cases:
        shown = state_words(state, role, hook=False)
        assert advice_of(subject(state=state, hook=False, role=role, state_words=shown)) == []


def test_a_special_advice_replaces_the_general_one_on_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Advice("data_loading", "loader", "num_workers=8", GAIN),
        Advice(None, "hint", "a hint"),
        Advice("transfer", "pinning", "pin_memory=True", Gain(1.2, 1.1, 1.3, "gpu")),
        Advice("host_bound", "sync", "no .item()", Gain(1.5, 1.1, 1.7, "gpu")),
    ]
    table = (*advice.SOURCES, *(lambda _, row=row: row for row in rows))
    monkeypatch.setattr(advice, "SOURCES", table)

    found = advice_of(subject(limited_by="data_loading"))
    assert [row.topic for row in found] == ["loader", "sync", "pinning", "hint"]


@pytest.mark.parametrize("reason", loaders.REASONS)
def test_the_diagnosis_of_the_loader_replaces_the_general_advice(reason: str) -> None:
    numbered = reason in {loaders.TOO_FEW_WORKERS, loaders.TRAINING_THREAD, loaders.STORAGE}
    found_by = Diagnosis(reason, 8, 2.0, 2.0) if numbered else Diagnosis(reason)
    gains, loader = {"data_loading": GAIN}, {"workers": "2"}
    (found,) = advice_of(subject(gains=gains, diagnosis=found_by, loader=loader, limited_by="data_loading"))

    topic = "crowded" if reason in loaders.FOR_CPUS else "loader"
    assert (found.cause, found.topic) == ("data_loading", topic)
    assert ("num_workers=8 in the DataLoader (now 2)" in found.change) == numbered
    assert found.gain == (Gain(2.0, 2.0, 2.0, "gpu") if numbered else None)


def test_the_number_of_workers_in_words() -> None:
    few: dict[str, Any] = {"diagnosis": Diagnosis(loaders.TOO_FEW_WORKERS, 8, 2.6, 2.6), "loader": {"workers": "2"}}
    none: dict[str, Any] = {"diagnosis": Diagnosis(loaders.TRAINING_THREAD, 3, 1.8, 1.8)}
    useless: dict[str, Any] = {"diagnosis": Diagnosis(loaders.TOO_FEW_CPUS, 2, 1.0, 1.0), "loader": {"workers": "2"}}

    assert words(advice_of(subject(**few))) == "num_workers=8 in the DataLoader (now 2)"
    assert words_of_gain(advice_of(subject(**few))[0]) == "steps about 2.6 times as fast"
    with_next = advice_of(subject(**few, gains={"data_loading": GAIN}))
    assert words(with_next) == "num_workers=8 in the DataLoader (now 2)"
    assert words_of_gain(with_next[0]) == "steps about 2.6 times as fast, then limited by its computation on the GPU"
    assert (words(advice_of(subject(**none))) or "").startswith("load the batches in other processes")
    assert (words(advice_of(subject(**useless))) or "").startswith("more CPUs, or cheaper decoding")


@pytest.mark.parametrize(
    ("workers", "change"),
    [
        (
            "0",
            "num_workers=16 in the DataLoader (now 0); more would be too many for this machine, so make the dataset "
            "faster, too: "
            "a batch takes 4.1 s to load (2 % on a CPU, 98 % in other waits: network, locks, sleep)",
        ),
        (
            "16",
            "make the dataset faster: a batch takes 4.1 s to load (2 % on a CPU, 98 % in other waits: network, locks, "
            "sleep), and 16 loader workers are enough for this machine",
        ),
    ],
)
def test_a_batch_that_takes_too_long_for_any_sensible_number_of_workers(workers: str, change: str) -> None:
    speedup = 227.0 if workers == "0" else 1.0
    slow = Diagnosis(loaders.SLOW_BATCHES, 16, speedup, speedup)
    batches = session(wire.Loader(10, measured=10, cpu_seconds=1.0, blocked_seconds=40.0))
    found = advice_of(subject(diagnosis=slow, loader={"workers": workers}, sessions=batches, state="training_on_cpu"))

    assert words(found) == change
    queued = session(wire.Loader(10, measured=10, cpu_seconds=1.0, queued_seconds=40.0))
    text = words(advice_of(subject(diagnosis=slow, loader={"workers": workers}, sessions=queued))) or ""
    assert text.startswith("more CPUs, not more loader workers: a batch takes 4.1 s to load (2 % on a CPU, 98 % wai")
    gain = "steps about 227 times as fast, then it still waits for its data loader"
    assert words_of_gain(found[0]) == (gain if workers == "0" else None)


@pytest.mark.parametrize("pageable", [False, True])
def test_pinned_memory_is_advised_once(pageable: bool) -> None:
    made = session(mistakes={"pageable_batches": pageable})
    loader = {"workers": "2", "pin_memory": "no", "prefetch": "2"}

    text = words(advice_of(subject(sessions=made, limited_by="data_loading", loader=loader))) or ""
    assert text.count("pin_memory=True") == 1


def test_the_gain_in_words() -> None:
    assert (
        gain_words(GAIN, "data_loading")
        == "steps about 2.2 to 3.1 times as fast, then limited by its computation on the GPU"
    )
    large = replace(GAIN, expected=640.2, upper=1000.0)
    assert gain_words(large, "data_loading").startswith("steps at least 2.2 times as fast,")
    assert gain_words(replace(GAIN, next="host_bound"), "data_loading").endswith(
        "then it waits for its own Python code"
    )


def test_known_mistakes_follow_what_limits_the_process() -> None:
    made: dict[str, Any] = {
        "sessions": session(mistakes={"profiler": True, "anomaly_detection": False}),
        "gains": {"data_loading": GAIN},
    }
    profiler = next(mistake.change for mistake in MISTAKES if mistake.name == "profiler")

    limited = advice_of(subject(**made, limited_by="data_loading"))
    healthy = advice_of(subject(**made))
    assert [row.topic for row in limited] == ["limit", "profiler"]
    assert words(limited) == f"{LOADING}; 3. {profiler}"
    assert words_of_gain(limited[0]) == gain_words(GAIN, "data_loading")
    undecided = replace(limited[0], gain=None)
    assert words_of_gain(replace(undecided, most=2.0)) == "steps up to 2 times as fast"
    assert words_of_gain(undecided) is None
    assert words(healthy) == profiler
    assert words([]) is None


def host(**figures: Any) -> HostProcess:
    return HostProcess("p", 1, Stat("R", 1, 0, 0.0, 0.0, 1, 0, 0, 1, 1, False), **figures)


def on_gpu(**figures: Any) -> dict[str, Memory]:
    return {"memory": Memory({"GPU-a": OnDevice(**figures)})}


def fragmented(allocator: str = "native", alloc_conf: str = "") -> dict[str, Any]:
    return {"sessions": session(allocator=allocator, alloc_conf=alloc_conf), **on_gpu(fragmentation=0.4)}


def swapped(size: int) -> dict[str, HostProcess]:
    return {"hosts": host(bounds=Bounds(swapped=size))}


GROWTH = Growth(2 << 20, 2 << 20, 2 << 20, 1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("facts", "limited_by", "topic", "text"),
    [
        ({"memory": Memory(batch_ratio=3.1)}, "host_bound", "batch", "up to one 3.1 times as large"),
        ({"memory": Memory(batch_ratio=1.2)}, "host_bound", "limit", CAUSES["host_bound"].advice),
        ({"memory": Memory(batch_ratio=3.1)}, "transfer", "limit", CAUSES["transfer"].advice),
        (fragmented(), "memory_pressure", "fragmentation", "expandable_segments:True: 40% of the reserved"),
        *(
            (facts, "memory_pressure", "limit", CAUSES["memory_pressure"].advice)
            for facts in (fragmented(alloc_conf="expandable_segments: True"), fragmented("cudaMallocAsync"))
        ),
        (swapped(3 << 30), "memory_swap_io", "swap", "3 GiB of the process are swapped out"),
        (swapped(0), "memory_swap_io", "limit", CAUSES["memory_swap_io"].advice),
        (
            on_gpu(full_seconds=7200.0, growth=GROWTH),
            None,
            "memory_growth",
            "grows by 2 MiB in each step and is full in 2.0 h",
        ),
        (
            {"memory": Memory(full_seconds=600.0)},
            None,
            "host_memory_growth",
            "process keeps: the memory of the cgroup reaches its limit in 10 min",
        ),
        (
            {"memory": Memory(full_seconds=600.0, growth={"children": GROWTH})},
            None,
            "host_memory_growth",
            "objects that the loader workers keeps",
        ),
    ],
)
def test_advice_on_memory(facts: dict[str, Any], limited_by: str | None, topic: str, text: str) -> None:
    (found,) = advice_of(subject(**facts, limited_by=limited_by))

    assert (found.topic, found.cause) == (topic, limited_by)
    assert text in found.change


def test_slow_growth_is_no_advice() -> None:
    growing = Memory({"GPU-a": OnDevice(growth=GROWTH, full_seconds=1e6)}, full_seconds=1e6)

    assert advice_of(subject(memory=growing)) == []


@pytest.mark.parametrize("reason", [loaders.BUSY_CPUS, loaders.TOO_FEW_CPUS, None])
@pytest.mark.parametrize("cpu", [0.46, 0.3])
def test_a_training_that_waits_for_a_cpu_needs_one_first_and_gains_nothing_from_workers(
    reason: str | None, cpu: float
) -> None:
    diagnosis = Diagnosis(reason) if reason else None
    facts: dict[str, Any] = {"state": "training_on_cpu", "level": "poor", "loader": {"workers": "0"}}
    of = subject(**facts, data_wait_ratio=0.43, rest_shares={"runnable": cpu}, diagnosis=diagnosis)

    found = advice_of(of)
    assert (words(found, of.mains) or "").startswith("more CPUs")
    assert "num_workers" not in (words(found, of.mains) or "")
    assert (words(found, of.mains) or "").count("more CPUs") == 1
    assert words_of_gain(found[0]) == f"steps up to {factor(1 / (1 - cpu))} times as fast"
    assert found[0].topic == "crowded"


def test_a_training_whose_quota_is_used_up_needs_a_larger_one_first() -> None:
    facts: dict[str, Any] = {"state": "training_on_cpu", "level": "poor", "loader": {"workers": "0"}}
    facts |= {"data_wait_ratio": 0.43, "rest_shares": {"runnable": 0.46}, "gains": {"cpu_limited": GAIN}}
    of = subject(**facts, diagnosis=Diagnosis(loaders.TOO_FEW_CPUS, 0, 1.0, 1.0))

    assert words(advice_of(of), of.mains) == CAUSES["cpu_limited"].advice


def test_no_gain_is_larger_than_the_share_of_its_cause_allows() -> None:
    lost: dict[str, Any] = {"causes": {"transfer": 0.44, "host_bound": 0.16}, "lost_ratio": 0.6}
    of = subject(**lost, limited_by="transfer", gains={"transfer": Gain(2.5, 2.4, 2.6, "gpu")})
    (found,) = advice_of(of)

    assert found.gain is not None
    assert found.gain.upper == round(1 / (1 - 0.44), 3)
    # Where no gain is decided, the most is said.
    assert words_of_gain(replace(found, gain=None)) == ("steps up to 1.8 times as fast")
