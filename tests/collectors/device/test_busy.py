from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpugauge.collectors.device.busy import BUCKETS, EngineAccount
from tests.collectors.ring import Load, Ring

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


@settings(max_examples=120, deadline=None)
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


@settings(max_examples=200, deadline=None)
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


SECOND = 1_000_000


def fed(*drains: tuple[float, list[list[int]]], percent: int | None = 0) -> EngineAccount:
    account = EngineAccount()
    for now, samples in drains:
        account.drain(samples, now, percent)
    return account


def samples(*percents: int, after: float, period: float = 0.1) -> list[list[int]]:
    return [[round((after + (i + 1) * period) * SECOND), percent] for i, percent in enumerate(percents)]


def totals(account: EngineAccount) -> tuple[float, float, float]:
    return round(account.busy, 6), round(account.observed, 6), round(account.unobserved, 6)


def test_first_drain_counts_nothing() -> None:
    account = fed((10.0, samples(*[100] * 72, after=2.8)))

    assert totals(account) == (0, 0, 0)


def test_sample_counts_for_the_time_since_the_one_before() -> None:
    account = fed((1.0, samples(*[0] * 10, after=0)), (2.0, samples(*[100] * 5, *[40] * 5, after=1)))

    assert totals(account) == (0.7, 1.0, 0.0)


def test_garbage_and_repeated_samples_are_dropped() -> None:
    whole = samples(*[0] * 10, after=0)
    new = samples(*[100] * 10, after=1)

    account = fed((1.0, whole), (2.0, [[0, 100], [1_050_000, 255], *whole, *new, *reversed(new)]))

    assert totals(account) == (1.0, 1.0, 0.0)


def test_idle_device_with_an_empty_ring_is_observed() -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 10, after=0), 1.0, 0)
    observed = []
    for now in (2.0, 3.0, 4.0):
        account.drain([], now, 0)
        observed.append(account.observed)

    assert observed == pytest.approx([0.9, 1.9, 2.9])  # the next sample covers the last period
    assert account.busy == 0


def test_sample_after_an_empty_ring_is_not_counted_twice() -> None:
    account = fed((1.0, samples(*[0] * 10, after=0)), (2.0, []), (3.0, []), (4.0, samples(*[100] * 5, after=3.5)))

    assert totals(account) == (0.5, 3.0, 0.0)


def test_empty_ring_of_a_busy_device_is_unobserved() -> None:
    account = fed((1.0, samples(*[100] * 10, after=0)), (11.0, []), percent=100)

    assert account.busy == account.observed == 0
    assert account.unobserved == pytest.approx(10, abs=0.1)


def test_empty_ring_is_not_idle_without_a_percentage_of_0() -> None:
    account = fed((1.0, samples(*[0] * 10, after=0)), (5.0, []), percent=None)

    assert account.observed == 0


def test_wrapped_ring_is_unobserved_up_to_its_oldest_sample() -> None:
    account = fed((1.0, samples(*[100] * 10, after=0)), (31.0, samples(*[100] * 72, after=23.8)), percent=100)

    assert totals(account) == (7.2, 7.2, 22.8)


def test_jump_of_the_driver_clock_adds_no_time() -> None:
    account = fed((1.0, samples(*[100] * 10, after=0)), (2.0, samples(*[100] * 10, after=3600)), percent=100)

    assert totals(account) == (1.0, 1.0, 0.0)


def test_reloaded_driver_starts_with_its_new_clock() -> None:
    old, new = samples(*[100] * 10, after=1000), samples(*[100] * 10, after=0)

    account = fed((1.0, old), (4.0, new), (5.0, samples(*[100] * 10, after=1)), percent=100)

    assert totals(account) == (1.0, 1.0, 3.0)


def test_mixed_samples_of_a_clock_set_back_are_unobserved() -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 10, after=0), 1.0, 0, unix=1001.0)
    account.drain([*samples(*[100] * 5, after=1), *samples(*[100] * 5, after=1.2)], 2.0, 100, unix=1001.7)

    assert totals(account) == (0, 0, 1.0)


def test_gap_of_a_clock_that_was_set_is_not_idle() -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 3, after=0), 1.0, 0, unix=1001.0)
    account.drain(samples(*[100] * 7, after=1), 2.2, 0, unix=1000.2)

    assert totals(account) == (0.7, 0.7, 0.5)


def test_polled_percentage_counts_for_the_time_since_the_last_poll() -> None:
    account = EngineAccount(polled=True)
    for now, percent in ((1.0, 90), (2.0, 50), (3.0, 100), (4.0, 0)):
        account.poll(percent, now)

    assert totals(account) == (1.5, 3.0, 0.0)


def test_polls_that_failed_for_long_are_unobserved() -> None:
    account = EngineAccount(polled=True)
    for now in (*range(1, 21), 51):
        account.poll(100, now)

    assert totals(account) == (20, 20, 30)


def test_counters_continue_with_another_source() -> None:
    account = fed((1.0, samples(*[100] * 10, after=0)), (2.0, samples(*[100] * 10, after=1)))
    account.restart(polled=True)
    account.poll(100, 3.0)
    account.poll(100, 4.0)

    assert totals(account) == (2.0, 2.0, 1.0)


def test_mean_is_over_the_last_five_seconds() -> None:
    account = EngineAccount()
    for second in range(20):
        account.drain(samples(*[100 if second < 17 else 0] * 10, after=second), second + 1.0, 0)

    assert account.mean(20.0) == pytest.approx(0.4)
    assert account.mean(26.0) is None


def test_histogram_has_idle_gaps_as_zeros() -> None:
    account = fed((1.0, samples(*[0] * 10, after=0)), (3.0, []), (4.0, samples(3, 50, 100, 100, after=3.6)))
    histogram = account.histogram

    # 2.6 idle seconds between, then the four samples.
    zeros = histogram.counts[0]
    assert zeros == pytest.approx(26, abs=1)
    assert [count - zeros for count in histogram.counts] == [0, 1, 1, 1, 2, 2, 2, 2, 4, 4]
    assert histogram.total == pytest.approx(2.53)
    assert len(histogram.counts) == len(BUCKETS) + 1
