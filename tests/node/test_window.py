"""A window of typed values, with varying time between ticks."""

from __future__ import annotations

from typing import Any

import pytest

from gpugauge.driver.api import Device, DeviceReading
from gpugauge.node import training
from gpugauge.node.node import Node, Use
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire


def session(steps: Any) -> Session:
    return Session(wire.Hello("p", 0), 1, 1, wire.Snap("p", 1, steps=wire.Progress(steps)))


def node(at: float, power: dict[str, int] | None = None, **steps: float) -> Node:
    """Return a node with these sessions by their steps, and with the power draw of its GPUs."""
    devices = tuple(Device(u, True, "ok", DeviceReading(power_milliwatts=w), {}) for u, w in (power or {}).items())
    found = Node(at, at, devices)
    found.sessions = {process: session(count) for process, count in steps.items()}
    return found


def ticked(every: float, count: int) -> Window:
    """Return a window of ticks at an interval, in which a step is a second."""
    window = Window()
    for tick in range(count):
        window.add(node(tick * every, p=tick * every))
    return window


def test_rates_use_the_time_between_ticks() -> None:
    window = Window()
    for time in (0.0, 1.0, 2.0, 7.0, 11.4):
        window.add(node(time, p=3.0 * time))

    assert window.session("p").rate(training.steps) == pytest.approx(3.0)
    assert window.session("p").rise(training.steps) == pytest.approx(34.2)
    assert window.span == 11.4


def test_points_older_than_a_minute_are_dropped() -> None:
    for every in (1.0, 4.999, 5.001):
        window = ticked(every, 100)
        assert 60 - every <= window.span <= 60
        assert window.session("p").rate(training.steps) == pytest.approx(1.0)


def test_span_ignores_milliseconds() -> None:
    window = Window()
    for time in (0.0, 5.002, 9.999, 14.997):
        window.add(node(time))

    assert window.span == 15.0


def test_what_comes_and_goes_keeps_its_own_values() -> None:
    window = Window()
    window.add(node(0.0, {"a": 100}, p=1.0, q=10.0))
    window.add(node(5.0, {"b": 50, "a": 200}, q=11.0))
    window.add(node(10.0, q=13.0, p=4.0))

    assert [window.session(name).rise(training.steps) for name in "pqr"] == [3.0, 3.0, None]
    assert [window.gpu(uuid).mean(lambda gpu: gpu.power_milliwatts) for uuid in "abc"] == [150.0, 50.0, None]


def test_a_counter_that_was_reset_has_increased_by_at_least_its_value() -> None:
    window = Window()
    window.add(node(0.0, p=100.0))
    window.add(node(5.0, p=7.0))

    assert window.session("p").rise(training.steps) == 7.0


def test_part_in_which_a_process_is_present() -> None:
    window = Window()
    for time, names in ((0.0, "p"), (5.0, "pq"), (10.0, "pq")):
        window.add(node(time, None, **dict.fromkeys(names, time)))
    part = window.where(lambda point: "q" in point.sessions)

    assert window.where(lambda point: "p" in point.sessions) is window
    assert (part.span, part.session("p").rise(training.steps)) == (5.0, 5.0)
    assert part is window.where(lambda point: "q" in point.sessions), "its cache is shared"


def test_processes_with_memory_are_known() -> None:
    window, found = Window(), node(0.0)
    found.uses = {("p", "a"): Use(1, None), ("q", "a"): Use(None, 2.0), ("p", "b"): Use(2, 3.0)}
    window.add(found)

    assert window.points[0].holders == {"p"}
    assert (found.held("p"), found.held("q")) == (["a", "b"], [])


def test_recent_part_has_two_points_or_more() -> None:
    for every, span in ((1.0, 10.0), (4.99, 9.98), (5.01, 10.02), (9.0, 9.0), (20.0, 20.0), (29.0, 29.0)):
        recent = ticked(every, 20).recent(10.0)
        assert recent.span == pytest.approx(span, abs=0.1)
        assert recent.session("p").rise(training.steps) == pytest.approx(span)
    assert ticked(1.0, 1).recent(10.0).session("p").rise(training.steps) is None
