from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpugauge.collectors.busy import BUCKETS, EngineAccount
from gpugauge.metric import HistogramValue
from tests.collectors.ring import Load, Ring

JITTER = 0.15


@dataclass
class Watch:
    """A worker that reads a ring and an account that is fed by it; checks after every drain what must always hold."""

    ring: Ring
    steps: float = 0.0  # how far Unix time was set
    cursor: int = 0
    account: EngineAccount = field(default_factory=EngineAccount)
    begun: float = -1.0
    ahead: float = 0.0  # observed and unobserved seconds less wall time

    def drain(self, at: float) -> None:
        self.ring.advance(at)
        samples = self.ring.read(self.cursor)
        self.cursor = max((ts for ts, _ in samples), default=self.cursor)
        before = (self.account.busy, self.account.observed, self.account.unobserved)
        self.account.drain(samples, at, self.ring.percent, 1.7e9 + at + self.steps)
        after = (self.account.busy, self.account.observed, self.account.unobserved)
        if self.begun < 0:
            self.begun = at
            assert after == (0, 0, 0)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert self.account.busy <= self.account.observed + 1e-6
        self.ahead = self.account.observed + self.account.unobserved - (at - self.begun)
        assert self.ahead <= self.ring.period * (1 + JITTER)

    def check(self) -> None:
        """What was not observed may have been busy or idle; all else is right to 1 % of it and one sample."""
        true = self.ring.load.integral(self.ring.now) - self.ring.load.integral(self.begun)
        tolerance = 0.01 * self.account.observed + self.ring.period * (1 + JITTER)
        assert self.account.busy <= true + tolerance
        assert self.account.busy >= true - self.account.unobserved - tolerance


levels = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
loads = st.lists(st.tuples(st.floats(0.05, 30), levels), min_size=1, max_size=6).map(Load)


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    return Ring(
        draw(loads),
        period=draw(st.sampled_from([0.1, 1 / 6, 0.5, 1.0])),
        jitter=draw(st.sampled_from([0.0, 0.02, JITTER])),
        entries=draw(st.sampled_from([72, 100])),
        sleep_after=draw(st.sampled_from([1.0, 3.0, 1e9])),
        clock=draw(st.sampled_from([0.0, 1.7e9])),
        random=Random(draw(st.integers(0, 9))),
    )


@settings(max_examples=120, deadline=None)
@given(rings(), st.floats(0, 30), st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 99))
def test_drained_in_time_everything_is_observed(ring: Ring, begin: float, pace: float, seed: int) -> None:
    watch, random, at = Watch(ring), Random(seed), begin
    for _ in range(int(120 / pace)):
        watch.drain(at)
        assert abs(watch.ahead) <= ring.period * (1 + JITTER) + 1e-3
        at += pace * random.uniform(0.9, 1.1)

    watch.check()
    assert watch.account.unobserved <= 3 * ring.period
    true = ring.load.integral(ring.now) - ring.load.integral(begin)
    assert watch.account.busy == pytest.approx(true, abs=0.01 * watch.account.observed + ring.period * (1 + JITTER))


trouble = st.lists(
    st.tuples(
        st.integers(2, 15),  # drains in time before it
        st.sampled_from(["late", "restart", "reload", "set clock"]),
        st.floats(-40, 40),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(rings(), trouble, st.integers(0, 99))
def test_nothing_is_credited_that_was_not_seen(ring: Ring, troubles: list[tuple[int, str, float]], seed: int) -> None:
    watch, random, at = Watch(ring), Random(seed), 5.0
    for drains, kind, seconds in [*troubles, (20, "late", 0.0)]:
        for _ in range(drains):
            watch.drain(at)
            at += random.uniform(0.9, 1.3)
        ring.advance(at - 0.5)
        if kind == "late":
            at += abs(seconds)
        elif kind == "restart":
            watch.cursor = 0
            at += abs(seconds) / 10
        elif kind == "reload":
            ring.reload()
            watch.cursor = 0
            at += abs(seconds) / 10
        else:
            ring.clock += seconds
            watch.steps += seconds
    watch.drain(at)

    watch.check()
    assert abs(watch.ahead) <= 2.5 * ring.period
