"""A minute of exported series, at ticks that come at any time."""

from __future__ import annotations

import pytest

from gpugauge import catalog
from gpugauge.metric import Family
from gpugauge.snapshot import Section
from gpugauge.verdict.window import Wanted, Window

ROWS = {row.name: row for row in catalog.metrics()}
STEPS, POWER, INFO = "torch_steps_total", "gpu_power_watts", "torch_process_info"
WANTED = Wanted(now=frozenset({"gpu_up"}), lasting=frozenset({STEPS, POWER}), shown=frozenset({INFO}))


def family(name: str, **values: float) -> Family:
    """Return a family with a series for each subject; other labels are empty."""
    rest = ("",) * (len(ROWS[name].labels) - 1)
    return Family(ROWS[name], tuple(((subject, *rest), value) for subject, value in values.items()))


def section(*families: Family) -> list[Section]:
    return [Section("test", families)]


def test_rates_are_by_the_time_between_ticks_and_not_by_their_number() -> None:
    window = Window(WANTED)
    for time in (0.0, 1.0, 2.0, 7.0, 11.4):
        window.add(time, section(family(STEPS, p=3.0 * time)))

    assert window.rate(STEPS, "p") == pytest.approx(3.0)
    assert window.rise(STEPS, "p") == pytest.approx(34.2)
    assert window.span == 11.4


@pytest.mark.parametrize("every", [1.0, 4.999, 5.001])
def test_older_points_than_a_minute_are_forgotten(every: float) -> None:
    window = Window(WANTED)
    for tick in range(100):
        window.add(tick * every, section(family(STEPS, p=tick)))

    assert 60 - every <= window.span <= 60
    assert window.rate(STEPS, "p") == pytest.approx(1 / every)


def test_milliseconds_by_which_ticks_come_early_do_not_count() -> None:
    window = Window(WANTED)
    for time in (0.0, 5.002, 9.999, 14.997):
        window.add(time, section(family(STEPS, p=time)))

    assert window.span == 15.0


def test_series_that_come_and_go_keep_their_own_values() -> None:
    window = Window(WANTED)
    window.add(0.0, section(family(STEPS, p=1.0, q=10.0), family(POWER, a=100.0)))
    window.add(5.0, section(family(STEPS, q=11.0), family(POWER, b=50.0, a=200.0)))
    window.add(10.0, section(family(STEPS, q=13.0, p=4.0)))

    assert (window.rise(STEPS, "p"), window.rise(STEPS, "q")) == (3.0, 3.0)
    assert (window.mean(POWER, "a"), window.mean(POWER, "b"), window.mean(POWER, "c")) == (150.0, 50.0, None)
    assert (window.last(STEPS, "p"), window.last(POWER, "a")) == (4.0, None)


def test_what_is_asked_only_now_is_not_remembered() -> None:
    window = Window(WANTED)
    window.add(0.0, section(family("gpu_up", a=1.0)))
    window.add(5.0, section(family("gpu_up", a=0.0)))
    window.add(10.0, section(family(STEPS, p=1.0)))

    assert window.values("gpu_up", "uuid") == set()
    assert window.last("gpu_up", "a") is None


def test_the_part_since_a_process_is_shown() -> None:
    window = Window(WANTED)
    for time, shown in ((0.0, {"p": 1.0}), (5.0, {"p": 1.0, "q": 1.0}), (10.0, {"p": 1.0, "q": 1.0})):
        window.add(time, section(family(INFO, **shown), family(STEPS, p=time, q=time)))

    assert window.since_shown(INFO, "p") is window
    assert window.since_shown(INFO, "q").span == 5.0
    assert window.since_shown(INFO, "q").rise(STEPS, "p") == 5.0
    assert window.since_shown(INFO, "q") is window.since_shown(INFO, "q")


def test_a_family_that_did_not_change_is_remembered_once() -> None:
    window, same = Window(WANTED), family(STEPS, p=1.0)
    for time in (0.0, 5.0):
        window.add(time, section(same))
    window.add(10.0, section(family(STEPS, p=2.0)))
    first, second, third = (point.lasting[STEPS] for point in window._points)

    assert first is second
    assert third._places is first._places
