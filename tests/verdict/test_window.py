"""A window of exported series, with varying time between ticks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge import catalog
from gpugauge.metric import Family, HistogramValue
from gpugauge.snapshot import Section
from gpugauge.verdict.window import Window, WindowFamilies

ROWS = {row.name: row for row in catalog.metrics()}
STEPS, POWER, INFO = "torch_steps_total", "gpu_power_watts", "torch_process_info"
FAMILIES = WindowFamilies(latest=frozenset({"gpu_up"}), history=frozenset({STEPS, POWER}), subjects=frozenset({INFO}))


def family(name: str, **values: float) -> Family:
    """Return a family with a series for each subject; other labels are empty."""
    rest = ("",) * (len(ROWS[name].labels) - 1)
    return Family(ROWS[name], tuple(((subject, *rest), value) for subject, value in values.items()))


def section(*families: Family) -> list[Section]:
    return [Section("test", families)]


def test_rates_use_the_time_between_ticks() -> None:
    window = Window(FAMILIES)
    for time in (0.0, 1.0, 2.0, 7.0, 11.4):
        window.add(time, section(family(STEPS, p=3.0 * time)))

    assert window.rate(STEPS, "p") == pytest.approx(3.0)
    assert window.rise(STEPS, "p") == pytest.approx(34.2)
    assert window.span == 11.4


def ticked(every: float, count: int) -> Window:
    """Return a window of ticks at an interval, in which a step is a second."""
    window = Window(FAMILIES)
    for tick in range(count):
        window.add(tick * every, section(family(STEPS, p=tick * every)))
    return window


def test_points_older_than_a_minute_are_dropped() -> None:
    for every in (1.0, 4.999, 5.001):
        window = ticked(every, 100)
        assert 60 - every <= window.span <= 60
        assert window.rate(STEPS, "p") == pytest.approx(1.0)


def test_span_ignores_milliseconds() -> None:
    window = Window(FAMILIES)
    for time in (0.0, 5.002, 9.999, 14.997):
        window.add(time, section(family(STEPS, p=time)))

    assert window.span == 15.0


BOUNDS = ROWS["torch_step_duration_seconds"].buckets


def histogram(*counts: int) -> Window:
    """Return a window with a histogram that has so many observations in each of its first buckets."""
    cumulative = [sum(counts[: n + 1]) for n in range(len(BOUNDS) + 1)]
    window = Window(WindowFamilies(frozenset({"torch_step_duration_seconds"}), frozenset(), frozenset({INFO})))
    row = ROWS["torch_step_duration_seconds"]
    window.add(0.0, section(Family(row, ((("p",), HistogramValue(tuple(cumulative), 1.0)),))))
    return window


@given(st.lists(st.integers(0, 50), min_size=1, max_size=len(BOUNDS) + 1), st.floats(0.01, 1.0))
def test_quantile_is_the_bound_below_which_the_share_lies(counts: list[int], share: float) -> None:
    """The truth is found by counting single observations, each at the upper bound of its bucket."""
    found = histogram(*counts).quantile(share, "torch_step_duration_seconds", "p")

    observations = [bound for bound, n in zip((*BOUNDS, math.inf), counts, strict=False) for _ in range(n)]
    if not observations:
        assert found is None
        return
    assert found in BOUNDS
    below = sum(value <= found for value in observations)
    assert below >= share * len(observations) or found == BOUNDS[-1]
    if found > BOUNDS[0]:
        less = BOUNDS[BOUNDS.index(found) - 1]
        assert sum(value <= less for value in observations) < share * len(observations)


def test_quantile_without_observations_or_without_a_series() -> None:
    assert histogram(0).quantile(0.99, "torch_step_duration_seconds", "p") is None
    assert histogram(1).quantile(0.99, "torch_step_duration_seconds", "q") is None
    assert Window(FAMILIES).quantile(0.99, "torch_step_duration_seconds", "p") is None


def test_series_that_come_and_go_keep_their_own_values() -> None:
    window = Window(FAMILIES)
    window.add(0.0, section(family(STEPS, p=1.0, q=10.0), family(POWER, a=100.0)))
    window.add(5.0, section(family(STEPS, q=11.0), family(POWER, b=50.0, a=200.0)))
    window.add(10.0, section(family(STEPS, q=13.0, p=4.0)))

    assert (window.rise(STEPS, "p"), window.rise(STEPS, "q")) == (3.0, 3.0)
    assert (window.mean(POWER, "a"), window.mean(POWER, "b"), window.mean(POWER, "c")) == (150.0, 50.0, None)
    assert (window.last(STEPS, "p"), window.last(POWER, "a")) == (4.0, None)


def test_families_without_history_have_the_last_samples_only() -> None:
    window = Window(FAMILIES)
    window.add(0.0, section(family("gpu_up", a=1.0)))
    window.add(5.0, section(family("gpu_up", a=0.0)))
    window.add(10.0, section(family(STEPS, p=1.0)))

    assert window.values("gpu_up", "uuid") == set()
    assert window.last("gpu_up", "a") is None


def test_window_since_a_process_is_present() -> None:
    window = Window(FAMILIES)
    for time, shown in ((0.0, {"p": 1.0}), (5.0, {"p": 1.0, "q": 1.0}), (10.0, {"p": 1.0, "q": 1.0})):
        window.add(time, section(family(INFO, **shown), family(STEPS, p=time, q=time)))

    assert window.since_present(INFO, "p") is window
    assert window.since_present(INFO, "q").span == 5.0
    assert window.since_present(INFO, "q").rise(STEPS, "p") == 5.0
    assert window.since_present(INFO, "q") is window.since_present(INFO, "q")


def test_unchanged_family_is_stored_once() -> None:
    window, same = Window(FAMILIES), family(STEPS, p=1.0)
    for time in (0.0, 5.0):
        window.add(time, section(same))
    window.add(10.0, section(family(STEPS, p=2.0)))
    first, second, third = (point.history[STEPS] for point in window._points)

    assert first is second
    assert third._index is first._index


def test_recent_part_has_two_points_or_more() -> None:
    for every, span in ((1.0, 10.0), (4.99, 9.98), (5.01, 10.02), (9.0, 9.0), (20.0, 20.0), (29.0, 29.0)):
        recent = ticked(every, 20).recent(10.0)
        assert recent.span == pytest.approx(span, abs=0.1)
        assert recent.rise(STEPS, "p") == pytest.approx(span)
    assert ticked(1.0, 1).recent(10.0).rise(STEPS, "p") is None
