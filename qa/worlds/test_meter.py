"""Seconds by state, compared with drawn programs whose every second is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.verdict.meter import PhaseMeter
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
