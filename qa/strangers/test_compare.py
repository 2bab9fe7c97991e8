"""The comparison finds wrong statements, and true ones pass."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import qa.strangers.truth as recorder
from qa.strangers.compare import statements
from qa.strangers.draw import draw
from qa.strangers.ends import Ended, ends
from qa.strangers.observe import Poll
from qa.strangers.timeline import Timeline, read

BATCH, WAIT, WORK = 1.0, 0.25, 0.75
COUNT = 20


def recorded(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a program that waits a quarter of each of 20 seconds."""
    events: list[dict[str, Any]] = [{"t": 100.0, "e": "begin"}, {"t": 100.0, "e": "parameters", "allowed": [18]}]
    for number in range(COUNT):
        at = 100.0 + number * BATCH
        events += [
            {"t": at, "e": "ask", "mode": "training", "known": True},
            {"t": at + WAIT, "e": "got", "mode": "training"},
            {"t": at + BATCH, "e": "step"},
        ]
    return [{"thread": 1, **event} for event in (*events, *more)]


def truth(*more: dict[str, Any]) -> Timeline:
    return Timeline(7, recorded(*more), 100.0 + COUNT)


TRUE = {
    ("torch_steps_total", ""): float(COUNT),
    ("torch_batches_total", ""): float(COUNT),
    ("torch_data_wait_seconds_total", "training"): COUNT * WAIT,
    ("torch_phase_seconds_total", "training"): COUNT * WORK,
    ("torch_phase_seconds_total", "loading"): COUNT * WAIT - WAIT,
    ("torch_phase_seconds_total", "evaluating"): 0.0,
    ("torch_parameter_elements", ""): 18.0,
    ("training_state", "training_on_cpu"): 1.0,
    ("training_seconds_total", "training_on_cpu"): float(COUNT),
}


def wrong(values: dict[tuple[str, str], float | None], *more: dict[str, Any]) -> list[str]:
    """Return the names of the wrong statements after some values have changed; None means absent."""
    changed = {**TRUE, **values}
    present = {key: value for key, value in changed.items() if value is not None}
    polls = [Poll(time, time + 0.1, present) for time in (119.9, 121.0, 132.0)]
    return [statement.name for statement in statements(truth(*more), polls) if statement.verdict == "wrong"]


def test_what_is_true_is_right() -> None:
    assert wrong({}) == []


@pytest.mark.parametrize(
    ("name", "label", "value", "statement"),
    [
        ("torch_steps_total", "", COUNT - 1.0, "steps"),
        ("torch_steps_total", "", COUNT + 1.0, "steps"),
        ("torch_steps_total", "", None, "steps"),
        ("torch_batches_total", "", COUNT - 1.0, "batches"),
        ("torch_data_wait_seconds_total", "training", COUNT * WAIT - 0.3, "waits training"),
        ("torch_data_wait_seconds_total", "training", None, "waits"),
        ("torch_data_wait_seconds_total", "evaluating", 1.0, "waits evaluating"),
        ("torch_phase_seconds_total", "training", COUNT * WORK + 3, "phase training"),
        ("torch_phase_seconds_total", "evaluating", 3.0, "phase evaluating"),
        ("torch_thread_seconds_total", "training asleep", COUNT * WORK + 1, "thread training"),
        ("torch_parameter_elements", "", 36.0, "parameters"),
        ("training_seconds_total", "training_on_cpu", COUNT + 3.0, "seconds training"),
        ("training_seconds_total", "evaluating", 3.0, "seconds evaluating"),
    ],
)
def test_a_wrong_value_is_found(name: str, label: str, value: float | None, statement: str) -> None:
    assert statement in wrong({(name, label): value})


@pytest.mark.parametrize("state", ["starting", "evaluating", "stalled", "not_training", "compiling"])
def test_a_wrong_state_is_found(state: str) -> None:
    assert wrong({("training_state", "training_on_cpu"): None, ("training_state", state): 1.0}) == ["state over time"]


def test_an_undeclared_wait_may_be_absent_but_not_zero() -> None:
    events = [{**event, "known": False} if event["e"] == "ask" else event for event in recorded()]

    def verdict(seconds: float | None) -> list[str]:
        values = dict(TRUE)
        if seconds is None:
            del values["torch_data_wait_seconds_total", "training"]
        else:
            values["torch_data_wait_seconds_total", "training"] = seconds
        found = statements(Timeline(7, events, 120.0), [Poll(121.0, 121.1, values)])
        return [statement.verdict for statement in found if statement.name.startswith("waits")]

    assert (verdict(None), verdict(0.0), verdict(COUNT * WAIT)) == (["absent"], ["wrong"], ["right"])


@pytest.mark.parametrize(("reason", "found"), [("killed", []), ("finished", ["waits evaluating"])])
def test_what_no_step_has_decided_may_be_absent_of_a_killed_process(reason: str, found: list[str]) -> None:
    mode = {"mode": "evaluating", "known": True}
    last = [{"t": 120.0, "e": "ask", **mode}, {"t": 121.0, "e": "got", **mode}, {"t": 121.0, "e": "stop"}]
    end = {"t": 121.0, "e": "end", "reasons": [reason]}

    assert wrong({("torch_batches_total", ""): COUNT + 1.0}, *last, end) == found


def test_a_process_that_is_not_reported_is_wrong() -> None:
    assert [statement.verdict for statement in statements(truth(), [])] == ["wrong"]


def test_a_state_is_due_from_the_begin_of_the_session() -> None:
    entered = {"t": 70.0, "thread": 1, "e": "enter", "phase": "training", "certain": True}
    stateless = {key: value for key, value in TRUE.items() if not key[0].startswith("training_")}

    def verdicts(events: list[dict[str, Any]], ended: float) -> list[str]:
        polls = [Poll(time, time + 0.1, stateless) for time in (ended - 11, ended)]
        found = statements(Timeline(7, events, ended), polls)
        return [statement.verdict for statement in found if statement.name == "state over time"]

    assert verdicts(recorded(), 120.0) == ["wrong"]
    assert verdicts([entered, *recorded()[:8]], 105.0) == []


def test_the_programs_of_an_exec_are_separate(tmp_path: Path) -> None:
    lines = [{"t": 1.1, "e": "begin"}, {"t": 1.0, "e": "step"}, {"t": 9.0, "e": "begin"}, {"t": 9.5, "e": "step"}]
    path = tmp_path / "7.jsonl"
    path.write_text("\n".join(json.dumps({"thread": 1, **line}) for line in lines))

    assert [len(events) for events in read(path)] == [2, 2]


def test_the_recorder_writes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUTH", str(tmp_path))
    for x in recorder.each([1, 2]):
        recorder.step()
        recorder.ticked(samples=x)
    os.close(recorder._files.pop(os.getpid()))
    (events,) = read(tmp_path / f"{os.getpid()}.jsonl")
    measured = Timeline(os.getpid(), events, 0.0)

    assert (len(measured.steps), measured.batches, measured.samples) == (2, 2, 3)
    assert measured.waits().known.keys() == {"training"}


def test_ends_are_compared_by_reason() -> None:
    planned = [Ended("a", 10.0, ("finished",), True), Ended("b", 11.0, ("error",), True)]

    def wrong_reasons(**counts: int) -> list[str]:
        found = ends(planned, [(0.0, {}), (12.0, counts)])
        return [statement.name for statement in found if statement.verdict == "wrong"]

    assert wrong_reasons(finished=1, error=1) == []
    assert wrong_reasons(finished=2) == ["ended: error", "ended: finished"]


def test_a_seed_gives_one_program() -> None:
    assert draw(5) == draw(5)
    assert len({draw(seed).name for seed in range(100)}) > 90


def test_drawn_programs_have_no_place_left_to_fill() -> None:
    assert [seed for seed in range(400) if "@\n" in draw(seed).files["prog.py"]] == []
