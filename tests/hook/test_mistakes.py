"""Known mistakes: drawn trainings that make several of them, or none, and the findings about them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpugauge.verdict import mistakes

from .conftest import RunFork

PROGRAM = Path(__file__).with_name("mistaken.py")
# The mistakes that the program draws; the others need a GPU.
DRAWN = {"anomaly_detection", "profiler", "empty_cache", "too_many_threads"}


@pytest.mark.torch
@pytest.mark.parametrize("armed", ["early", pytest.param("late", marks=pytest.mark.everything)])
def test_drawn_mistakes_are_found_and_no_others(armed: str, fork: RunFork) -> None:
    seed, count = os.environ.get("GPUGAUGE_MISTAKES", "23 40").split()
    # The program arms the hook itself, when it wants to.
    training = fork(PROGRAM.read_text(), (seed, count, armed), GPUGAUGE_HOOK="0")
    output, errors = training.communicate()
    assert training.returncode == 0, errors
    drawn = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(drawn) == int(count)
    planted = {name for training in drawn for name in training["truth"]}
    assert planted == DRAWN
    for training in drawn:
        found = {name for name, present in mistakes.found(training["facts"]).items() if present}
        assert sorted(found) == training["truth"], training
        assert {name: training["facts"].get(name) for name in training["settings"]} == training["settings"], training


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, {}),
        ({"launch_blocking": "yes"}, {"launch_blocking": True}),
        ({"launch_blocking": "no", "profiler": "maybe"}, {"launch_blocking": False}),
        ({"dataparallel_devices": "4"}, {"data_parallel": True}),
        ({"dataparallel_devices": "1"}, {"data_parallel": False}),
        ({"loader_workers": "2", "loader_pin_memory": "no", "parameters_on": "cuda"}, {"pageable_batches": True}),
        ({"loader_workers": "2", "loader_pin_memory": "yes", "parameters_on": "cuda"}, {"pageable_batches": False}),
        ({"loader_workers": "0", "loader_pin_memory": "no", "parameters_on": "cuda"}, {}),
        ({"loader_workers": "2", "loader_pin_memory": "no", "parameters_on": "other"}, {}),
        ({"torch_threads": "8", "cpus": "8", "ranks_on_cpus": "1"}, {"too_many_threads": False}),
        ({"torch_threads": "8", "cpus": "8", "ranks_on_cpus": "2"}, {"too_many_threads": True}),
        ({"torch_threads": "1", "cpus": "2", "ranks_on_cpus": "8"}, {"too_many_threads": False}),
        ({"torch_threads": "8", "cpus": "8"}, {}),
        ({"torch_threads": "8", "cpus": "8", "ranks_on_cpus": "?"}, {}),
    ],
)
def test_facts_decide_or_are_silent(facts: dict[str, str], expected: dict[str, bool]) -> None:
    assert mistakes.found(facts) == expected
