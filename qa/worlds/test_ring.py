"""Seconds of engines from drawn sample rings, under loads that are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import EVERYTHING

from gpugauge.collectors.device.busy import EngineAccount
from qa.worlds.ring import Load, Ring

JITTER = 0.15


@dataclass
class Watch:
    """A worker that reads a ring, after 15 s without a sample the whole ring, and the account of its samples. Checks
    the invariants after every drain.
    """

    ring: Ring
    steps: float = 0.0  # seconds by which Unix time was set
    cursor: int = 0
    reopened: bool = False
    fresh: float = 0.0
    account: EngineAccount = field(default_factory=EngineAccount)
    begun: float = -1.0
    ahead: float = 0.0  # observed and unobserved seconds minus wall time

    def drain(self, at: float) -> None:
        self.ring.advance(at)
        samples = self.ring.read(self.cursor)
        if not samples and at - self.fresh > 15:
            samples = self.ring.read(0)
        if samples:
            self.cursor, self.fresh = max(ts for ts, _ in samples), at
        before = (self.account.busy, self.account.observed, self.account.unobserved)
        self.account.drain(samples, at, self.ring.percent, 1.7e9 + at + self.steps, reopened=self.reopened)
        self.reopened = False
        after = (self.account.busy, self.account.observed, self.account.unobserved)
        if self.begun < 0:
            self.begun = at
            assert after == (0, 0, 0)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert self.account.busy <= self.account.observed + 1e-6
        self.ahead = self.account.observed + self.account.unobserved - (at - self.begun)
        assert abs(self.ahead) <= self.ring.period * (1 + self.ring.jitter) + 1e-3
        self.check()

    def restart(self) -> None:
        self.cursor, self.reopened = 0, True

    def check(self) -> None:
        """Check the busy seconds: unobserved time can be busy or idle, the rest is exact to 1 % and one sample."""
        true = self.ring.load.integral(self.ring.now) - self.ring.load.integral(self.begun)
        tolerance = 0.01 * self.account.observed + self.ring.period * (1 + JITTER)
        assert self.account.busy <= true + tolerance
        undecided = max(0.0, -self.ahead)
        assert self.account.busy >= true - self.account.unobserved - undecided - tolerance


levels = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


loads = st.lists(st.tuples(st.floats(0.05, 30), levels), min_size=1, max_size=6).map(Load)


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    period = draw(st.sampled_from([0.1, 1 / 6, 0.5, 1.0]))
    return Ring(
        draw(loads),
        period,
        jitter=draw(st.sampled_from([0.0, 0.02, JITTER])),
        entries=draw(st.sampled_from([72, 100])),
        sleep_after=draw(st.sampled_from([3.0, 20.0, 1e9])) * period,
        clock=draw(st.sampled_from([0.0, 1.7e9])),
        random=Random(draw(st.integers(0, 9))),
    )


@settings(max_examples=120 if EVERYTHING else 40, deadline=None)
@given(rings(), st.floats(4, 30), st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 99))
def test_timely_drains_observe_all_time(ring: Ring, begin: float, pace: float, seed: int) -> None:
    watch, random, at = Watch(ring), Random(seed), begin
    for _ in range(int(120 / pace)):
        watch.drain(at)
        at += pace * random.uniform(0.9, 1.1)

    assert watch.account.unobserved <= 3 * ring.period
    true = ring.load.integral(ring.now) - ring.load.integral(begin)
    assert watch.account.busy == pytest.approx(true, abs=0.01 * watch.account.observed + ring.period * (1 + JITTER))


trouble = st.lists(
    st.tuples(
        st.integers(0, 15),  # timely drains before it
        st.sampled_from(["late", "restart", "reload", "set clock"]),
        st.one_of(st.floats(-40, 40), st.floats(-2, 2)),
    ),
    max_size=6,
)


@settings(max_examples=200 if EVERYTHING else 70, deadline=None)
@given(rings(), st.floats(0, 30), st.sampled_from([1.0, 2.0, 5.0]), trouble, st.integers(0, 99))
def test_unsampled_time_is_never_busy(
    ring: Ring, begin: float, pace: float, troubles: list[tuple[int, str, float]], seed: int
) -> None:
    watch, random, at = Watch(ring), Random(seed), begin + pace
    ring.advance(begin)
    watch.drain(begin)
    for drains, kind, seconds in [*troubles, (60, "late", 0.0)]:
        for _ in range(drains):
            watch.drain(at)
            at += pace * random.uniform(0.9, 1.3)
        ring.advance(at - 0.5)
        if kind == "late":
            at += abs(seconds)
        elif kind == "restart":
            watch.restart()
            at += abs(seconds) / 10
        elif kind == "reload":
            ring.reload()
            watch.restart()
            at += abs(seconds) / 10
        else:
            ring.clock += seconds
            watch.steps += seconds
    watch.drain(at)
