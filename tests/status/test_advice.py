"""The table of advice: rows, their order, and the gain in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpugauge.metric import Family
from gpugauge.status import advice
from gpugauge.status.advice import Exported, Subject, advice_of, first_gain_words, gain_words, words
from gpugauge.status.model import Advice, ProcessStatus
from gpugauge.status.words import RUN_ADVICE
from gpugauge.verdict import loaders
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.gain import Gain
from gpugauge.verdict.mistakes import MISTAKES
from tests.status.statusfacts import family

GAIN = Gain(2.6, 2.2, 3.1, "gpu")


def speedups(**gains: Gain) -> dict[str, Family]:
    """Return the exported gains of process p by cause."""
    found = {}
    for bound, value in (("", "expected"), ("_lower", "lower"), ("_upper", "upper")):
        name = f"training_expected_speedup{bound}_ratio"
        found[name] = family(name, *(({"process": "p", "cause": c}, getattr(g, value)) for c, g in gains.items()))
    name = "training_expected_speedup_info"
    found[name] = family(name, *(({"process": "p", "cause": c, "next": g.next}, 1) for c, g in gains.items()))
    return found


def subject(families: dict[str, Family] | None = None, process: str = "p", **facts: Any) -> Subject:
    facts = {"process": process, "hook": True, "state": "training", **facts}
    return Subject(Exported(families or {}), ProcessStatus(**facts))


def test_the_main_cause_has_its_gain() -> None:
    (found,) = advice_of(subject(speedups(data_loading=GAIN), limited_by="data_loading"))

    assert found == Advice("data_loading", "limit", CAUSES["data_loading"].advice, GAIN)


def test_the_gain_of_another_process_or_cause_is_not_shown() -> None:
    exported = speedups(data_loading=GAIN)

    assert advice_of(subject(exported, process="q", limited_by="data_loading"))[0].gain is None
    assert advice_of(subject(exported, limited_by="transfer"))[0].gain is None


def test_a_training_on_the_cpu_gains_most_without_its_largest_wait() -> None:
    small = Gain(1.2, 1.1, 1.3, "cpu")
    exported = speedups(cpu_limited=small, data_loading=GAIN)

    waits = advice_of(subject(exported, state="training_on_cpu"))
    assert [(row.cause, row.gain) for row in waits] == [("data_loading", GAIN), ("cpu_limited", small)]
    assert advice_of(subject(exported)) == []
    (found,) = advice_of(subject(exported, state="training_on_cpu", limited_by="model_on_cpu"))
    assert (found.cause, found.gain) == ("model_on_cpu", None)


def test_other_causes_with_a_gain_follow_the_main_one() -> None:
    exported = speedups(transfer=Gain(1.1, 1.05, 1.2, "gpu"), contention=Gain(1.4, 1.3, 1.5, "gpu"))

    found = advice_of(subject(exported, limited_by="data_loading"))
    assert [row.cause for row in found] == ["data_loading", "contention", "transfer"]
    assert words(found) == CAUSES["data_loading"].advice
    assert advice_of(subject(exported)) == []


def test_nothing_is_advised_to_a_healthy_training() -> None:
    assert advice_of(subject()) == []


@pytest.mark.parametrize(
    ("facts", "topic"),
    [
        ({"state": "stalled", "pid": 7}, "stalled"),
        ({"state": "held_idle"}, "idle"),
        ({"state": None, "hook": False}, "hook"),
    ],
)
def test_states_with_an_advice(facts: dict[str, Any], topic: str) -> None:
    (found,) = advice_of(subject(**facts))

    assert (found.topic, found.cause, found.gain) == (topic, None, None)
    assert topic != "stalled" or "--pid 7" in found.change
    assert topic != "hook" or found.change == RUN_ADVICE


def test_a_display_server_needs_no_hook() -> None:
    assert advice_of(subject(state=None, hook=False, role="display")) == []


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


def diagnosed(reason: str, recommended: int | None, speedup: float | None, workers: str = "2") -> dict[str, Family]:
    """Return the exported diagnosis of the loader of process p."""
    found = {
        "training_loader_limited_by": family("training_loader_limited_by", ({"process": "p", "reason": reason}, 1))
    }
    labels = {"process": "p", "workers": workers, "batch_size": "4", "pin_memory": "no", "prefetch": "2"}
    found["torch_loader_info"] = family("torch_loader_info", (labels, 1))
    for name, value in (
        ("training_loader_workers_recommended", recommended),
        ("training_loader_expected_speedup_ratio", speedup),
        ("training_loader_expected_speedup_lower_ratio", speedup),
    ):
        if value is not None:
            found[name] = family(name, ({"process": "p"}, value))
    return found


@pytest.mark.parametrize("reason", loaders.REASONS)
def test_the_diagnosis_of_the_loader_replaces_the_general_advice(reason: str) -> None:
    numbered = reason in {loaders.TOO_FEW_WORKERS, loaders.TRAINING_THREAD, loaders.STORAGE}
    exported = diagnosed(reason, 8 if numbered else None, 2.0 if numbered else None)
    (found,) = advice_of(subject({**speedups(data_loading=GAIN), **exported}, limited_by="data_loading"))

    assert (found.cause, found.topic) == ("data_loading", "loader")
    assert ("8 loader workers instead of 2" in found.change) == numbered
    assert found.gain == (Gain(2.0, 2.0, 2.0, "gpu") if numbered else None)


def test_the_number_of_workers_in_words() -> None:
    few = diagnosed(loaders.TOO_FEW_WORKERS, 8, 2.6)
    none = diagnosed(loaders.TRAINING_THREAD, 3, 1.8, workers="")
    useless = diagnosed(loaders.TOO_FEW_CPUS, 2, 1.0)

    assert words(advice_of(subject(few))) == "8 loader workers instead of 2"
    assert first_gain_words(advice_of(subject(few))) == "steps 2.6 times as fast"
    with_next = advice_of(subject({**few, **speedups(data_loading=GAIN)}))
    assert words(with_next) == "8 loader workers instead of 2"
    assert first_gain_words(with_next) == "steps 2.6 times as fast, then limited by its computation on the GPU"
    assert (words(advice_of(subject(none))) or "").startswith("load the batches in other processes")
    assert (words(advice_of(subject(useless))) or "").startswith("more loader workers will not help")


@pytest.mark.parametrize(
    ("workers", "change"),
    [
        (
            "0",
            "16 loader workers instead of 0; more would be too many for this machine, so make the dataset faster, too: "
            "a batch takes 4.1 s to load",
        ),
        (
            "16",
            "make the dataset faster: a batch takes 4.1 s to load, and 16 loader workers are enough for this machine",
        ),
    ],
)
def test_a_batch_that_takes_too_long_for_any_sensible_number_of_workers(workers: str, change: str) -> None:
    exported = diagnosed(loaders.SLOW_BATCHES, 16, 227.0 if workers == "0" else 1.0, workers)
    parts = (({"process": "p", "part": part}, 10 * seconds) for part, seconds in (("cpu", 0.1), ("blocked", 4.0)))
    exported["torch_loader_seconds_total"] = family("torch_loader_seconds_total", *parts)
    name = "torch_loader_measured_batches_total"
    exported[name] = family(name, ({"process": "p"}, 10))
    found = advice_of(subject(exported, state="training_on_cpu"))

    assert words(found) == change
    gain = "steps 227 times as fast, then it still waits for its data loader"
    assert first_gain_words(found) == (gain if workers == "0" else None)


@pytest.mark.parametrize("pageable", [0, 1])
def test_pinned_memory_is_advised_once(pageable: int) -> None:
    made = family("training_mistake", ({"process": "p", "mistake": "pageable_batches"}, pageable))
    loader = {"workers": "2", "pin_memory": "no", "prefetch": "2"}

    text = words(advice_of(subject({"training_mistake": made}, limited_by="data_loading", loader=loader))) or ""
    assert text.count("pin_memory=True") == 1


def test_the_gain_in_words() -> None:
    assert (
        gain_words(GAIN, "data_loading")
        == "steps 2.6 times as fast (2.2 to 3.1), then limited by its computation on the GPU"
    )
    large = replace(GAIN, expected=640.2, upper=1000.0)
    assert gain_words(large, "data_loading").startswith("steps 640 times as fast (2.2 to 1000),")
    assert gain_words(replace(GAIN, next="host_bound"), "data_loading").endswith(
        "then it waits for its own Python code"
    )


def test_known_mistakes_follow_what_limits_the_process() -> None:
    made = family(
        "training_mistake",
        ({"process": "p", "mistake": "profiler"}, 1),
        ({"process": "p", "mistake": "anomaly_detection"}, 0),
        ({"process": "q", "mistake": "empty_cache"}, 1),
    )
    exported = {**speedups(data_loading=GAIN), "training_mistake": made}
    profiler = next(mistake.change for mistake in MISTAKES if mistake.name == "profiler")

    limited = advice_of(subject(exported, limited_by="data_loading"))
    healthy = advice_of(subject(exported))
    assert [row.topic for row in limited] == ["limit", "profiler"]
    assert words(limited) == f"{CAUSES['data_loading'].advice}; also {profiler}"
    assert first_gain_words(limited) == gain_words(GAIN, "data_loading")
    assert first_gain_words(healthy) is None
    assert words(healthy) == profiler
    assert words([]) is None


def memory(**values: float) -> dict[str, Family]:
    """Return the exported memory of process p by family."""
    found = {}
    for name, value in values.items():
        labels = {"process": "p", "uuid": "GPU-a"} if name.startswith("training_memory") else {"process": "p"}
        found[name] = family(name, (labels, value))
    return found


def allocator(backend: str = "native", configured: str = "") -> dict[str, Family]:
    labels = dict.fromkeys(("autocast", "deterministic", "cudnn_benchmark", "cudnn_deterministic"), "")
    labels |= {"process": "p", "allocator": backend, "alloc_conf": configured, "current_device": "", "batch_device": ""}
    return {"torch_settings_info": family("torch_settings_info", (labels, 1))}


@pytest.mark.parametrize(
    ("families", "limited_by", "topic", "text"),
    [
        (memory(training_batch_headroom_ratio=3.1), "host_bound", "batch", "one up to 3.1 times as large"),
        (memory(training_batch_headroom_ratio=1.2), "host_bound", "limit", CAUSES["host_bound"].advice),
        (memory(training_batch_headroom_ratio=3.1), "transfer", "limit", CAUSES["transfer"].advice),
        (
            {**memory(training_memory_fragmentation_ratio=0.4), **allocator()},
            "memory_pressure",
            "fragmentation",
            "expandable_segments:True: 40% of the reserved",
        ),
        (
            {**memory(training_memory_fragmentation_ratio=0.4), **allocator(configured="expandable_segments: True")},
            "memory_pressure",
            "limit",
            CAUSES["memory_pressure"].advice,
        ),
        (
            {**memory(training_memory_fragmentation_ratio=0.4), **allocator("cudaMallocAsync")},
            "memory_pressure",
            "limit",
            CAUSES["memory_pressure"].advice,
        ),
        (memory(gpu_process_swapped_bytes=3 << 30), "memory_swap_io", "swap", "3 GiB of the process are swapped out"),
        (memory(gpu_process_swapped_bytes=0), "memory_swap_io", "limit", CAUSES["memory_swap_io"].advice),
        (
            memory(training_memory_full_seconds=7200, training_memory_step_growth_bytes=2 << 20),
            None,
            "memory_growth",
            "grows by 2 MiB in each step and is full in 2 h",
        ),
        (memory(training_host_memory_full_seconds=600), None, "host_memory_growth", "reaches its limit in 10 min"),
    ],
)
def test_advice_on_memory(families: dict[str, Family], limited_by: str | None, topic: str, text: str) -> None:
    (found,) = advice_of(subject(families, limited_by=limited_by))

    assert (found.topic, found.cause) == (topic, limited_by)
    assert text in found.change


def test_slow_growth_is_no_advice() -> None:
    growing = memory(training_memory_full_seconds=1e6, training_memory_step_growth_bytes=1)

    assert advice_of(subject({**growing, **memory(training_host_memory_full_seconds=1e6)})) == []
