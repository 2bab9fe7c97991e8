"""Drawn healthy trainings are whole programs, and advice on them is judged by what they waited."""

from __future__ import annotations

import pytest

from qa.healthy.__main__ import judge
from qa.healthy.draw import control, draw


@pytest.mark.parametrize("seed", range(0, 300, 10))
def test_a_program_is_complete(seed: int) -> None:
    for program in (draw(seed + number) for number in range(10)):
        compile(program.source, program.name, "exec")
        assert "@" not in program.source


@pytest.mark.parametrize(
    ("advice", "log", "verdict"),
    [
        ({}, "waited 0.012\n", "right"),
        ({"loader delivery": [1.0]}, "waited 0.012\n", "false"),
        ({"loader delivery": [1.0]}, "waited 0.012waited 0.052\n", "waits"),
        ({"loader delivery": [1.0], "mistake profiler": [1.0]}, "waited 0.052\n", "false"),
        ({}, "Traceback\n", "failed"),
    ],
)
def test_advice_is_judged_by_the_wait(advice: dict[str, list[float]], log: str, verdict: str) -> None:
    assert judge(advice, log) == verdict


def test_the_control_must_be_advised() -> None:
    assert "Rows(400, own / 4)" in control().source
    assert judge({}, "waited 0.612\n", healthy=False) == "false"
    assert judge({"loader training_thread": [1.0]}, "waited 0.612\n", healthy=False) == "right"
