"""Seconds by state, compared with drawn programs whose every second is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.verdict.meter import PhaseMeter
from gpugauge.verdict.states import RESTING
from gpugauge.wire.shares import NAMED_PHASES


@dataclass
class Part:
    """A part of a program: in a phase, or in a wait for a batch that belongs to the phase."""

    phase: str
    seconds: int
    waits: bool


parts = st.lists(
    st.builds(
        Part,
        st.sampled_from(["training", "training", "evaluating", "checkpointing", "compiling", "generating"]),
        st.integers(1, 40),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@dataclass
class Program:
    """What a hook reports of the parts second by second: totals by phase, waits that have ended, the present wait."""

    parts: list[Part]
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waiting: float = 0.0

    def run(self) -> Iterator[None]:
        for part in self.parts:
            for second in range(1, part.seconds + 1):
                self.seconds["loading" if part.waits else part.phase] += 1
                self.waiting = second if part.waits else 0.0
                if part.waits and second == part.seconds:
                    self.waits[part.phase] += part.seconds
                    self.waiting = 0.0
                yield

    def truth(self, on_cpu: bool) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for part in self.parts:
            loop = "training_on_cpu" if on_cpu else "training"
            found[part.phase if part.phase in NAMED_PHASES else loop] += part.seconds
        return dict(found)


@given(parts, st.lists(st.integers(1, 30), min_size=1, max_size=10), st.booleans(), st.integers(0, 1))
def test_every_second_is_in_the_state_of_its_phase(
    drawn: list[Part], ticks: list[int], on_cpu: bool, late: int
) -> None:
    """The waits are reported at once, or one tick late."""
    program, meter = Program(drawn), PhaseMeter()
    found: defaultdict[str, float] = defaultdict(float)
    reported: list[Mapping[str, float]] = [{}] * (late + 1)

    def advance(waiting: float | None) -> None:
        nonlocal reported
        reported = [*reported[1:], dict(program.waits)]
        waits = program.waits if waiting is None else reported[0]
        spent = meter.advance(dict(program.seconds), waits, "training", began=True, on_cpu=on_cpu, waiting=waiting)
        assert all(seconds > 0 for seconds in spent.values())
        for state, seconds in spent.items():
            found[state] += seconds

    due, every = ticks[0], 0
    for second, _ in enumerate(program.run(), 1):
        if second >= due:
            advance(program.waiting)
            every += 1
            due = second + ticks[every % len(ticks)]
    advance(None)

    assert dict(found) == pytest.approx(program.truth(on_cpu))


@pytest.mark.parametrize("state", sorted(RESTING - {"starting"}))
def test_a_state_that_no_phase_explains_has_all_of_the_time(state: str) -> None:
    meter = PhaseMeter()
    meter.advance({"training": 5.0}, {}, "training", began=True, on_cpu=False, waiting=0.0)
    spent = meter.advance(
        {"training": 7.0, "loading": 3.0}, {"training": 1.0}, state, began=True, on_cpu=False, waiting=2.0
    )

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
