import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.collectors.device.busy import BUCKETS, EngineAccount

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


@pytest.mark.parametrize(("later", "idle"), [(1.0, False), (25.0, False), (29.0, False), (31.0, True)])
def test_ring_that_was_empty_while_the_engine_was_busy_shows_no_idle_time(later: float, idle: bool) -> None:
    """A ring without samples of a busy engine is broken: for half a minute its silence proves nothing, whatever the
    percentage is.
    """
    account = EngineAccount()
    account.drain(samples(*[100] * 10, after=0), 1.0, 100)
    account.drain([], 3.0, 100)
    for now in range(4, int(3.0 + later)):
        account.drain([], now, None)  # in time, without a percentage
    before = account.observed

    account.drain([], 3.0 + later, 0)

    assert (account.observed > before) is idle
    assert account.busy == 0


def test_new_samples_end_the_distrust_of_a_ring() -> None:
    account = EngineAccount()
    account.drain(samples(*[100] * 10, after=0), 1.0, 100)
    account.drain([], 3.0, 100)
    account.drain(samples(*[100] * 10, after=3.0), 4.0, 100)
    account.drain(samples(*[0] * 5, after=4.0), 4.5, 0)
    before = account.unobserved

    account.drain([], 6.0, 0)

    assert account.unobserved == before
    assert account.observed == pytest.approx(1.0 + 0.5 + 1.4)


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


@pytest.mark.parametrize("back", [1.5, 3.0, 8.0])
def test_samples_are_hidden_for_as_long_as_the_clock_was_set_back(back: float) -> None:
    """Meanwhile an empty ring does not show that the engine is idle, and afterwards it does."""
    account = fed((0.0, []))
    account.drain(samples(*[0] * 10, after=0), 1.0, 0, unix=1001.0)
    for now in range(2, 21):
        account.drain([], now, 0, unix=1000.0 - back + now)

    busy, observed, unobserved = totals(account)

    assert busy == 0
    assert observed + unobserved == pytest.approx(20, abs=0.2)
    # A drain each second decides on all of it, and the two drains around the step are never trusted.
    assert back - 1 <= unobserved <= max(2, back) + 1


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


def test_a_late_sample_covers_the_time_since_the_one_before() -> None:
    late = samples(*[100] * 5, after=1) + samples(*[100] * 4, after=1.6)  # the sample at 1.6 s is missing

    assert totals(fed((1.0, samples(*[100] * 10, after=0)), (2.0, late), percent=100)) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("missing", "idle"), [(1, True), (2, True), (4, True), (2, False), (4, False)])
def test_missing_samples_are_idle_after_a_zero_and_otherwise_unobserved(missing: int, idle: bool) -> None:
    level = 0 if idle else 100
    first = samples(*[level] * 5, after=1)
    second = samples(*[level] * (5 - missing), after=1.5 + missing / 10)
    account = fed((1.0, samples(*[level] * 10, after=0)), (2.0, first + second), percent=level)

    lost = 0.0 if idle else missing / 10
    assert totals(account) == (0 if idle else round(1 - lost, 6), round(1 - lost, 6), lost)


def test_after_a_step_of_the_clock_a_small_gap_is_no_late_sample() -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 10, after=0), 1.0, 0, unix=1001.0)
    # The clock of the samples is set forward by 0.1 s: the sample of 100 % seems to cover twice its time.
    fresh = samples(40, 40, 40, 40, 40, after=1) + samples(100, 0, 0, 0, 0, after=1.6)
    account.drain(fresh, 2.0, 0, unix=1002.1)

    assert totals(account) == pytest.approx((0.3, 1.0, 0.0))


@pytest.mark.parametrize("percent", [0, 100])
def test_a_gap_is_unobserved_while_the_period_is_not_known(percent: int) -> None:
    account = fed((1.0, [[SECOND, 0]]), (6.0, [[6 * SECOND, 100]]), percent=percent)

    assert [account.busy, account.observed] == pytest.approx([1 / 6, 1 / 6])
    assert account.unobserved == pytest.approx(5 - 1 / 6)


def test_one_distance_alone_does_not_give_the_period() -> None:
    # The distance of 0.6 s has a step of the clock in it.
    account = fed((1.0, [[SECOND, 0]]), (1.7, [[1_600_000, 100]]), (2.0, samples(100, 100, 100, after=1.6)))

    assert account.busy <= 0.6 + 0.3 + 1e-6
    assert account.observed + account.unobserved == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("distribution", [True, False])
def test_the_period_follows_the_ring(distribution: bool) -> None:
    account = EngineAccount(distribution=distribution)
    account.drain(samples(*[0] * 10, after=0), 1.0, 0)
    for second in range(1, 41):
        account.drain(samples(0, 0, after=second, period=0.5), second + 1.0, 0)
    account.drain([], 44.0, 0)

    assert account.observed == pytest.approx(43 - 0.5)  # the next sample covers half a second


def test_distances_of_missing_samples_do_not_lengthen_the_period() -> None:
    account = EngineAccount()
    account.drain(samples(*[100] * 10, after=0), 1.0, 100)
    for second in range(1, 60):
        kept = [sample for i, sample in enumerate(samples(*[100] * 10, after=second)) if i not in (3, 4, 7)]
        account.drain(kept, second + 1.0, 100)
    account.drain([], 64.0, 0)

    assert account.observed + account.unobserved == pytest.approx(63 - 0.1)


@pytest.mark.parametrize("every", [1.0, 5.0, 60.0, 120.0])
def test_polls_count_for_the_time_since_the_last_one(every: float) -> None:
    account = EngineAccount(polled=True)
    for number in range(20):
        account.poll(40, 1 + number * every)

    assert account.observed == pytest.approx(19 * every)
    assert account.busy == pytest.approx(0.4 * 19 * every)


def test_polls_that_stopped_for_a_while_are_unobserved_meanwhile() -> None:
    account = EngineAccount(polled=True)
    for now in (1.0, 51.0, 101.0, 251.0):
        account.poll(100, now)

    assert totals(account) == (150, 150, 100)


def test_polls_more_than_two_minutes_apart_are_not_consecutive() -> None:
    account = EngineAccount(polled=True)
    for now in (1.0, 201.0, 401.0, 601.0):
        account.poll(100, now)

    assert account.observed < 1
    assert account.unobserved == pytest.approx(600, abs=1)


@pytest.mark.parametrize("garbage", [101, 255, -1])
def test_garbage_does_not_hide_that_the_clock_was_set_back(garbage: int) -> None:
    old, new = samples(*[100] * 10, after=1000), samples(*[100] * 10, after=0)
    account = fed((1.0, old), (4.0, [*new, [2000 * SECOND, garbage]]), (5.0, samples(*[100] * 10, after=1)))

    assert account.busy == pytest.approx(1.0)


def test_repeated_samples_after_a_clock_was_set_back_count_once() -> None:
    account = EngineAccount()
    account.drain(samples(*[100] * 10, after=10), 1.0, 100, unix=1001.0)
    account.drain([], 2.0, 100, unix=1001.5)  # set back by half a second
    repeated = sorted(samples(*[100] * 5, after=11) * 2)
    account.drain(repeated, 2.4, 100, unix=1001.9)

    assert account.busy == pytest.approx(0.5)


@given(st.lists(st.tuples(st.sampled_from([0, 20, 50, 90, 100]), st.integers(1, 4)), min_size=1, max_size=30))
def test_the_mean_is_that_of_the_last_five_seconds(loads: list[tuple[int, int]]) -> None:
    account, second = EngineAccount(), 0
    account.drain(samples(*[0] * 10, after=-1 + 10), 10.0, 0)
    levels: list[int] = []
    for percent, seconds in loads:
        for _ in range(seconds):
            second += 1
            levels.append(percent)
            account.drain(samples(*[percent] * 10, after=9 + second), 10.0 + second, percent)
    last = levels[-5:]

    assert account.mean(10.0 + second) == pytest.approx(sum(last) / len(last) / 100, abs=1e-6)


def test_there_is_no_mean_of_time_that_was_not_observed() -> None:
    account = EngineAccount()
    assert account.mean(0.0) is None
    account.drain(samples(*[100] * 10, after=0), 1.0, 100)
    assert account.mean(1.0) is None
    account.drain(samples(*[100] * 10, after=1), 2.0, 100)
    assert account.mean(2.0) == pytest.approx(1.0)
    assert account.mean(7.5) is None


@given(st.lists(st.lists(st.integers(0, 100), min_size=10, max_size=10), min_size=1, max_size=12))
def test_the_histogram_has_each_sample_once(drains: list[list[int]]) -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 10, after=0), 1.0, 0)
    for second, levels in enumerate(drains, 1):
        account.drain(samples(*levels, after=second), second + 1.0, None)
    every = [level for levels in drains for level in levels]

    assert account.histogram.total == pytest.approx(sum(every) / 100)
    for bound, count in zip([*BUCKETS, 10.0], account.histogram.counts, strict=True):
        assert count == sum(level / 100 <= bound for level in every)


def test_idle_seconds_become_zeros_of_the_histogram_over_many_drains() -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 10, after=0), 1.0, 0)
    now = 1.0
    for _ in range(200):
        now += 0.07  # less than a period: each drain adds a part of a sample
        account.drain([], now, 0)

    assert account.histogram.counts[0] == pytest.approx(140, abs=2)
    assert account.histogram.counts[-1] == account.histogram.counts[0]


def test_presumed_idle_time_that_has_samples_is_busy_and_not_observed_twice() -> None:
    account = EngineAccount()
    account.drain(samples(*[0] * 10, after=0), 1.0, 0)
    account.drain([], 2.0, 0)
    account.drain([], 3.0, 0)
    account.drain(samples(*[100] * 25, after=1), 3.5, 100)  # the ring was late by two seconds
    assert totals(account) == pytest.approx((2.5, 2.5, 0.0), abs=0.11)
    assert account.busy == pytest.approx(2.5)

    account.drain(samples(*[100] * 10, after=3.5), 4.5, 100)  # and nothing is presumed any more
    assert totals(account) == pytest.approx((3.5, 3.5, 0.0), abs=0.11)
    assert account.busy == pytest.approx(3.5)
