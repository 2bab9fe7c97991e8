"""Seconds by state, compared with drawn programs whose every second is known."""

from __future__ import annotations

import pytest

from gpugauge.verdict.meter import PhaseMeter
from gpugauge.verdict.states import RESTING


def test_a_state_that_no_phase_explains_has_all_of_the_time() -> None:
    for state in RESTING - {"starting"}:
        meter = PhaseMeter()
        meter.advance({"training": 5.0}, {}, "training", began=True, on_cpu=False, waiting=0.0)
        seconds, waits = {"training": 7.0, "loading": 3.0}, {"training": 1.0}
        spent = meter.advance(seconds, waits, state, began=True, on_cpu=False, waiting=2.0)

        assert spent == {state: pytest.approx(5.0)}


def test_the_time_before_the_first_step_is_starting() -> None:
    meter = PhaseMeter()
    first = meter.advance({"starting": 4.0}, {}, "starting", began=False, on_cpu=False, waiting=0.0)
    second = meter.advance({"starting": 6.0, "training": 3.0}, {}, "training", began=False, on_cpu=False, waiting=0.0)
    third = meter.advance({"starting": 7.0, "training": 5.0}, {}, "training", began=True, on_cpu=False, waiting=0.0)

    assert first == {"starting": 4.0}
    assert second == {"starting": 2.0, "training": 3.0}
    assert third == {"training": 3.0}  # between two steps, outside of any named phase


def test_the_part_that_was_not_watched_is_left_out() -> None:
    meter = PhaseMeter()
    meter.skip({"training": 40.0, "loading": 10.0}, {"evaluating": 10.0}, 0.5)
    spent = meter.advance(
        {"training": 40.0, "loading": 10.0}, {"evaluating": 10.0}, "training", began=True, on_cpu=False, waiting=0.0
    )

    assert spent == pytest.approx({"training": 20.0, "evaluating": 5.0})


def test_another_program_in_the_process_starts_from_zero() -> None:
    meter = PhaseMeter()
    meter.advance({"training": 90.0, "loading": 9.0}, {}, "training", began=True, on_cpu=False, waiting=9.0)
    spent = meter.advance({"starting": 2.0, "training": 1.0}, {}, "training", began=True, on_cpu=False, waiting=0.0)

    assert spent == {"starting": 2.0, "training": 1.0}


def test_totals_that_fall_by_a_rounding_are_the_same_program() -> None:
    meter = PhaseMeter()
    meter.advance({"training": 90.0}, {}, "training", began=True, on_cpu=False, waiting=0.0)

    assert meter.advance({"training": 89.6}, {}, "training", began=True, on_cpu=False, waiting=0.0) == {}
    assert meter.advance({"training": 91.6}, {}, "training", began=True, on_cpu=False, waiting=0.0) == {
        "training": pytest.approx(2.0)
    }


def test_a_wait_whose_phase_is_never_reported_is_training_at_the_second_call_after_its_end() -> None:
    meter = PhaseMeter()

    def spent(loading: float, training: float, waiting: float) -> dict[str, float]:
        seconds = {"loading": loading, "training": training}
        return meter.advance(seconds, {}, "training", began=True, on_cpu=False, waiting=waiting)

    assert spent(6.0, 0.0, 6.0) == {}
    assert spent(6.0, 4.0, 0.0) == {"training": 4.0}  # it has ended
    assert spent(6.0, 8.0, 0.0) == {"training": 10.0}
    assert spent(6.0, 9.0, 0.0) == {"training": 1.0}
