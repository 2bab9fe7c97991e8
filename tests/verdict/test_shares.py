"""The shares of a step from exported series."""

from __future__ import annotations

import pytest
from qa.worlds.scraped import node_of

from gpugauge import catalog
from gpugauge.metric import Family, HistogramValue, Value
from gpugauge.node.window import Window
from gpugauge.snapshot import Section
from gpugauge.verdict.shares import recent_seconds, step_shares

ROWS = {row.name: row for row in catalog.metrics()}
STEPS, LOCAL = "torch_step_duration_seconds", "torch_local_work_seconds_total"


def window(*points: dict[str, dict[str, Value]]) -> Window:
    """Return a window of points 10 s apart: values of process p by family and phase."""
    result = Window()
    for i, point in enumerate(points):
        named: dict[str, dict[str, Value]] = {"torch_process_info": {"": 1.0}, **point}
        families = []
        for name, values in named.items():
            rest = len(ROWS[name].labels) - 1
            families.append(Family(ROWS[name], tuple((("p", *(label,) * rest), v) for label, v in values.items())))
        result.add(node_of([Section("test", tuple(families))], monotonic=10.0 * i))
    return result


def phases(**seconds: float) -> dict[str, dict[str, Value]]:
    return {"torch_phase_seconds_total": dict(seconds)}


def test_a_rank_that_waits_for_others() -> None:
    def rank(steps: float, local: float) -> dict[str, dict[str, Value]]:
        return {STEPS: {"": HistogramValue((1,), steps)}, LOCAL: {"": local}}

    assert step_shares(window(rank(0.0, 0.0), rank(10.0, 4.0)), "p")[0] == pytest.approx({"peers": 0.6, "rest": 0.4})


def test_waits_count_for_their_phase() -> None:
    first = {**phases(training=0.0, loading=0.0, evaluating=0.0), "torch_data_wait_seconds_total": {}}
    first["torch_data_wait_seconds_total"] = {"training": 0.0, "evaluating": 0.0}
    second = phases(training=4.0, loading=5.0, evaluating=1.0)
    second["torch_data_wait_seconds_total"] = {"training": 3.0, "evaluating": 2.0}

    assert step_shares(window(first, second), "p")[0] == pytest.approx({"data": 0.3, "evaluating": 0.3, "rest": 0.4})


def test_parts_never_exceed_the_whole() -> None:
    waits = "torch_data_wait_seconds_total"  # the wait began before the window
    found = step_shares(window({waits: {"training": 0.0}}, {waits: {"training": 40.0}}), "p")[0]

    assert found == {"data": 1.0, "rest": 0.0}


def test_nothing_is_known_of_one_point_or_without_series() -> None:
    assert step_shares(window(phases(training=5.0)), "p")[0] == {}
    assert step_shares(window({}, {}), "p")[0] == {}


def test_the_shares_of_a_long_training_are_those_of_the_window() -> None:
    first, second = (phases(training=900.0 + t, evaluating=100.0 + e) for t, e in ((0.0, 0.0), (5.0, 5.0)))

    assert step_shares(window(first, second), "p")[0] == pytest.approx({"evaluating": 0.5, "rest": 0.5})


def test_the_shares_of_a_young_training_are_those_of_its_life() -> None:
    first, second = phases(training=2.0, evaluating=1.0), phases(training=6.0, evaluating=4.0)

    assert step_shares(window(first, second), "p")[0] == pytest.approx({"evaluating": 0.4, "rest": 0.6})


def test_recent_seconds() -> None:
    # A session of at most 10 s: all of it.
    assert recent_seconds(window(phases(starting=3.0, training=4.0)), "p", "training") == {
        "starting": 3.0,
        "training": 4.0,
    }
    # A session that the daemon sees for the first time: the present phase.
    assert recent_seconds(window(phases(training=900.0)), "p", "evaluating") == {"evaluating": 10.0}
    three = [phases(training=900.0, evaluating=e) for e in (0.0, 50.0, 58.0)]
    assert recent_seconds(window(*three), "p", "evaluating") == {"training": 0.0, "evaluating": 8.0}
    assert recent_seconds(window({}), "p", None) == {}
