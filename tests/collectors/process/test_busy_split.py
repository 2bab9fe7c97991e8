"""The busy seconds of a GPU, split among its processes: sums, shares and what is carried over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.collectors.process.busy_split import UNCERTAIN, BusySplit, shares

SECOND = 1_000_000


def row(at: float, pid: int, percent: int) -> list[int]:
    return [round(at * SECOND), pid, percent]


def named(pid: int, since: float) -> str | None:
    """Return the owner of a pid: 9 may be another process, and 8 is none."""
    return {9: UNCERTAIN, 8: None}.get(pid, f"p{pid}")


class Run:
    """A split with the sums of what it gave."""

    def __init__(self) -> None:
        self.split, self.given = BusySplit(), dict[str, float]()

    def drain(self, now: float, busy: float | None, *rows: list[int]) -> dict[str, float]:
        found = self.split.drain([rows] if rows else [], now, busy, named)
        for process, seconds in found.items():
            self.given[process] = self.given.get(process, 0.0) + seconds
        return found


percents = st.dictionaries(st.integers(1, 9), st.integers(0, 100), max_size=4)
drains = st.lists(st.tuples(st.floats(0.2, 5), st.floats(0, 1), percents), min_size=1, max_size=30)


@given(drains)
def test_all_busy_time_has_one_owner_at_most(program: list[tuple[float, float, dict[int, int]]]) -> None:
    run, now, busy = Run(), 100.0, 7.0
    run.drain(now, busy)
    for seconds, load, loads in program:
        now, busy = now + seconds, busy + load * seconds
        found = run.drain(now, busy, *(row(now, pid, percent) for pid, percent in loads.items()))
        assert all(value >= 0 for value in found.values())
        assert UNCERTAIN not in found
        assert "p8" not in found
        assert run.split.unaccounted is not None
        total = sum(run.given.values()) + run.split.unaccounted
        # Half a second is carried over, and never more than the last drain had.
        assert busy - 7.0 - min(0.5, load * seconds) - 1e-6 <= total <= busy - 7.0 + 1e-6


@given(st.integers(1, 99), st.integers(1, 99), st.floats(0.5, 5))
def test_the_time_is_split_in_proportion_to_the_samples(first: int, second: int, every: float) -> None:
    run, now = Run(), 0.0
    run.drain(now, 0.0)
    for number in range(1, 21):
        now = number * every
        run.drain(now, 0.3 * now, row(now, 1, first), row(now, 2, second))

    enough = (first + second) / 100 >= 0.3
    if enough:  # the GPU's own seconds are shared out
        assert run.given["p1"] + run.given["p2"] == pytest.approx(0.3 * now, abs=0.5)
    else:  # each has what its samples show
        assert run.given["p1"] == pytest.approx(first / 100 * now, rel=0.05)
    assert run.given["p1"] / run.given["p2"] == pytest.approx(first / second)


def test_the_rest_of_the_busy_time_is_unaccounted() -> None:
    run = Run()
    run.drain(0.0, 0.0)
    for now in range(1, 101):
        run.drain(now, now, row(now, 1, 25))
        run.drain(now, now)  # a second tick without new rows

    assert run.given == {"p1": pytest.approx(25, abs=1)}
    assert run.split.unaccounted == pytest.approx(75, abs=1)


def test_time_of_an_uncertain_process_is_unaccounted() -> None:
    run = Run()
    run.drain(0.0, 0.0)
    for now in range(1, 11):
        run.drain(now, now, row(now, 1, 50), row(now, 9, 50))

    assert run.given == {"p1": pytest.approx(5)}
    assert run.split.unaccounted == pytest.approx(5)


def test_claims_and_busy_time_that_meet_in_the_next_drain_are_matched() -> None:
    late_rows, late_busy = Run(), Run()
    late_rows.drain(0.0, 0.0)
    late_rows.drain(1.0, 0.4)
    late_rows.drain(2.0, 0.4, row(2.0, 1, 40))
    assert late_rows.given == {"p1": pytest.approx(0.4)}
    assert late_rows.split.unaccounted == pytest.approx(0.0)

    late_busy.drain(0.0, 0.0)
    late_busy.drain(1.0, 0.0, row(1.0, 1, 40))
    late_busy.drain(2.0, 0.4)
    assert late_busy.given == {"p1": pytest.approx(0.4)}


def test_busy_time_is_carried_over_for_one_drain() -> None:
    run = Run()
    for now, busy in ((0.0, 0.0), (1.0, 0.4), (2.0, 0.4), (3.0, 0.4)):
        run.drain(now, busy)
    assert run.split.unaccounted == pytest.approx(0.4)

    run.drain(4.0, 0.4, row(4.0, 1, 40))
    assert run.given == {"p1": pytest.approx(0.0)}


def test_claims_beyond_half_a_second_are_not_carried_over() -> None:
    run = Run()
    run.drain(0.0, 0.0)
    run.drain(4.0, 0.0, row(4.0, 1, 100), row(4.0, 2, 100))
    run.drain(8.0, 4.0)

    assert run.given == {"p1": pytest.approx(0.25), "p2": pytest.approx(0.25)}


def test_without_the_busy_seconds_of_the_gpu_the_samples_are_the_seconds() -> None:
    run = Run()
    run.drain(0.0, None)
    for now in range(1, 11):
        run.drain(now, None, row(now, 1, 30))
    assert run.given == {"p1": pytest.approx(3.0)}
    assert run.split.unaccounted is None

    # From then on the GPU has a counter; its first value is a start.
    run.drain(11.0, 500.0)
    run.drain(12.0, 500.0, row(12.0, 1, 30))
    assert run.given == {"p1": pytest.approx(3.0)}
    assert run.split.unaccounted == pytest.approx(0.0)


@given(drains)
def test_without_the_busy_seconds_of_the_gpu_no_more_than_the_time_is_given(
    program: list[tuple[float, float, dict[int, int]]],
) -> None:
    """Some drivers report shares that add up to more than the GPU has."""
    run, now = Run(), 1000.0
    run.drain(now, None)
    for seconds, _, loads in program:
        now += seconds
        found = run.drain(now, None, *(row(now, pid, percent) for pid, percent in loads.items()))
        assert sum(found.values()) <= seconds + 1e-6


def test_what_was_carried_over_is_lost_with_the_busy_seconds_of_the_gpu() -> None:
    run = Run()
    run.drain(0.0, 0.0)
    run.drain(1.0, 0.4)
    run.drain(2.0, None)
    run.drain(3.0, 10.0, row(3.0, 1, 100))

    assert run.given == {"p1": pytest.approx(0.0)}


def test_a_counter_that_falls_gives_nothing() -> None:
    run = Run()
    run.drain(0.0, 100.0)
    assert run.drain(1.0, 3.0, row(1.0, 1, 100)) == {"p1": 0.0}
    assert run.drain(2.0, 4.0, row(2.0, 1, 100)) == {"p1": pytest.approx(1.0)}


def test_rows_stand_for_the_time_since_the_newest_row_before() -> None:
    for drains, covered in (
        ([(0.0, 0.0), (1.0, 1.0), (3.0, 3.0)], 2.0),  # the rows are of the time of the drain
        ([(0.0, 0.0), (1.0, 1.0), (3.0, 1.5)], 0.5),  # the newest row is old: the rest comes later
        ([(0.0, 0.0), (1.0, 1.0), (3.0, 9.0)], 2.0),  # a clock that jumped: at most the time between the replies
        ([(0.0, 0.0), (1.0, 1.0), (30.0, 30.0)], 12.0),  # no buffer covers more
        ([(0.0, 0.0), (1.0, 50.0), (3.0, 2.0)], 2.0),  # another clock
        ([(0.0, 0.0), (20.0, 20.0)], 12.0),  # the first rows
    ):
        run = Run()
        for now, stamp in drains:
            found = run.drain(now, None, *([row(stamp, 1, 10)] if stamp else []))
        assert found == {"p1": pytest.approx(0.1 * covered)}, drains


def test_after_a_restart_the_rows_of_a_new_worker_start_a_new_count() -> None:
    run = Run()
    run.drain(0.0, None, row(5.0, 1, 10))
    run.drain(1.0, None, row(6.0, 1, 10))
    run.split.restart()

    assert run.drain(3.0, None, row(6.5, 1, 10)) == {"p1": pytest.approx(0.2)}


def test_the_owner_has_had_the_pid_since_the_rows_began() -> None:
    asked = []
    split = BusySplit()
    split.drain([], 10.0, None, named)

    def owner(pid: int, since: float) -> str | None:
        asked.append((pid, since))
        return None

    split.drain([[row(12.0, 5, 10)]], 12.0, None, owner)

    assert asked == [(5, 9.0)]  # two seconds of rows, and a second for the reply


def test_shares() -> None:
    cases: list[tuple[list[list[list[int]]], dict[int, float]]] = [
        ([[row(1, 7, 0), row(2, 7, 50)]], {7: 0.25}),
        ([[row(1, 7, 100), row(1, 6, 20)]], {7: 1.0, 6: 0.2}),
        ([[row(1, 7, 40)], []], {7: 0.2}),
        ([[row(1, 7, 40)], [row(2, 7, 60)]], {7: 0.5}),
        ([[row(1, 7, 0)]], {}),
        ([[row(1, 7, 101), row(1, 6, 100)]], {6: 1.0}),
        (
            [[row(1, 7, -1)], [row(1, 0, 50)], [row(1, -3, 50)], [row(0, 7, 50)], [[1, 7]], [row(1, 1, 50)]],
            {1: 0.5 / 6},
        ),
        ([[[1, 7, 50, 3, 4]]], {7: 0.5}),
        ([], {}),
    ]
    for batches, expected in cases:
        assert shares(batches) == pytest.approx(expected), batches


def test_garbage_is_not_the_newest_row() -> None:
    run = Run()
    run.drain(0.0, None)
    run.drain(1.0, None, row(1.0, 1, 10), row(99.0, 1, 255))

    assert run.drain(3.0, None, row(3.0, 1, 10)) == {"p1": pytest.approx(0.2)}
