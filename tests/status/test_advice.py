"""The table of advice: rows, their order, and the gain in words."""

from __future__ import annotations

from typing import Any

import pytest

from gpugauge.metric import Family
from gpugauge.status import advice
from gpugauge.status.advice import Advice, Exported, Subject, advice_of, gain_words, words
from gpugauge.status.words import RUN_ADVICE
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
    return Subject(process, Exported(families or {}), {"hook": True, "state": "training", **facts})


def test_the_main_cause_has_its_gain() -> None:
    (found,) = advice_of(subject(speedups(data_loading=GAIN), limited_by="data_loading"))

    assert found == Advice("data_loading", "limit", CAUSES["data_loading"].advice, GAIN)


def test_the_gain_of_another_process_or_cause_is_not_shown() -> None:
    exported = speedups(data_loading=GAIN)

    assert advice_of(subject(exported, process="q", limited_by="data_loading"))[0].gain is None
    assert advice_of(subject(exported, limited_by="transfer"))[0].gain is None


def test_a_training_on_the_cpu_gains_most_without_its_largest_wait() -> None:
    exported = speedups(cpu_limited=Gain(1.2, 1.1, 1.3, "cpu"), data_loading=GAIN)

    (found,) = advice_of(subject(exported, state="training_on_cpu"))
    assert (found.cause, found.gain) == ("data_loading", GAIN)
    assert advice_of(subject(exported)) == []
    (found,) = advice_of(subject(exported, state="training_on_cpu", limited_by="model_on_cpu"))
    assert (found.cause, found.gain) == ("model_on_cpu", None)


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


def test_the_gain_in_words() -> None:
    found = Advice("data_loading", "limit", "more workers", GAIN).plain()

    assert (
        gain_words(found["gain"])
        == "steps 2.6 times as fast (2.2 to 3.1); then it is limited by its kernels on the GPU"
    )
    assert gain_words({**found["gain"], "next": "host_bound"}).endswith("then it waits for its own Python code")


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
    assert (
        words(limited) == f"{CAUSES['data_loading'].advice}: {gain_words(limited[0].plain()['gain'])}; also {profiler}"
    )
    assert words(healthy) == profiler
    assert words([]) is None
