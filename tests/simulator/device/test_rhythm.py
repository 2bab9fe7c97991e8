from __future__ import annotations

import pytest

from gpugauge.simulator.device.activity import Rhythm, working

PLAIN = {"compiling": 10.0, "every": 100.0, "evaluating": 20.0, "checkpointing": 5.0, "stalled_at": None}


def rhythm(**changes: float) -> Rhythm:
    return Rhythm({**PLAIN, **changes}, 1000.0, float("inf"))


def test_phase_and_its_start() -> None:
    phases = {
        1000: ("compiling", 1000),
        1010: ("training", 1010),
        1084: ("training", 1010),
        1085: ("evaluating", 1085),
        1105: ("checkpointing", 1105),
        1110: ("training", 1110),
        1205: ("checkpointing", 1205),
    }
    assert {second: rhythm().phase(second) for second in phases} == phases


def test_phases_add_up_to_the_time() -> None:
    found = rhythm().seconds(1237)

    assert found == {"compiling": 10, "training": 75 + 75 + 27, "evaluating": 40, "checkpointing": 10}


def test_stall_counts_as_training_without_progress() -> None:
    stalled = rhythm(stalled_at=1050.0)

    assert stalled.phase(1200) == ("training", 1010)
    assert (stalled.progress(1200), stalled.seconds(1200)["training"]) == (40, 190)
    assert stalled.pauses(1200) == 0


def test_moment_is_the_inverse_of_progress() -> None:
    for progress in (0.0, 3.5, 74.0, 75.0, 80.0, 160.0):
        assert rhythm().progress(rhythm().moment(progress)) == pytest.approx(progress)
    assert rhythm().moment(75.0) == 1085


def test_without_phases_it_only_trains() -> None:
    plain = Rhythm(None, 5.0, 20.0)

    assert (plain.progress(12), plain.progress(50), plain.moment(3.0), plain.pauses(50)) == (7, 15, 8, 0)


def test_load_of_long_steps() -> None:
    load = working(Rhythm(None, 0.0, float("inf")), 3.0, 10.0, smooth=False)

    assert [load(t) for t in (0, 2, 5, 10, 12)] == [0, 2, 3, 3, 5]


def test_load_of_a_shared_device_is_even() -> None:
    load = working(Rhythm(None, 0.0, float("inf")), 5.0, 10.0, smooth=True)

    assert [load(t) for t in (2, 10, 15)] == [1, 5, 7.5]
