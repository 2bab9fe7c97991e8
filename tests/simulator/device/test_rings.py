from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpugauge.simulator.device.rings import Ring


def ring(**plain: Any) -> Ring:
    return Ring({"period": 0.2, "capacity": 10, "jitter": 0.0, "dry_when_idle": False, "clock_steps": [], **plain})


def samples(
    made: Ring, after: int, t: float, busy: Any = None, occupied: Any = lambda _t: True
) -> list[tuple[int, int]]:
    return made.samples(after, t, busy, occupied)


def test_ring_has_the_latest_entries() -> None:
    found = samples(ring(), 0, 10.0)

    assert [stamp - ring().stamp(0.0) for stamp, _ in found] == [round(1e6 * (8.2 + 0.2 * i)) for i in range(10)]


def test_only_newer_entries() -> None:
    made = ring()

    assert [stamp for stamp, _ in samples(made, made.stamp(9.5), 10.0)] == [made.stamp(t) for t in (9.6, 9.8, 10.0)]


def test_percent_of_the_time_since_the_entry_before() -> None:
    found = samples(ring(), 0, 10.0, busy=lambda t: max(0.0, t - 9.7))

    assert [percent for _, percent in found][-3:] == [0, 50, 100]


def test_dry_when_idle() -> None:
    found = samples(ring(dry_when_idle=True), 0, 10.0, occupied=lambda t: t < 8.5)

    assert len(found) == 2


def test_clock_that_jumps() -> None:
    made = ring(clock_steps=[[9.5, -100.0]])

    stamps = [stamp for stamp, _ in samples(made, 0, 10.0)]

    assert max(stamps) == made.stamp(9.4)
    assert stamps[-1] == ring().stamp(-90.0)


@settings(deadline=None)
@given(st.floats(0, 1e4), st.floats(0, 0.99), st.floats(0.05, 1.0))
def test_jitter_keeps_the_order_and_the_period(t: float, jitter: float, period: float) -> None:
    stamps = [stamp for stamp, _ in samples(ring(jitter=jitter, period=period), 0, t)]

    assert stamps == sorted(set(stamps))
    assert len(stamps) in {9, 10}
    assert (stamps[-1] - stamps[0]) / 1e6 / (len(stamps) - 1) == pytest.approx(period, rel=0.12)
    assert stamps[-1] <= ring().stamp(t)


@settings(deadline=None)
@given(st.floats(0, 100), st.lists(st.floats(0.01, 3.0), min_size=1, max_size=8), st.floats(0, 0.99), st.booleans())
def test_drained_in_pieces_and_at_once(start: float, steps: list[float], jitter: float, dry: bool) -> None:
    """The cache of a ring has no effect: each entry is the same however it is read."""
    plain = {"jitter": jitter, "dry_when_idle": dry, "capacity": 200}
    wave: Any = lambda t: t / 2 + math.sin(3 * t) / 6  # noqa: E731  (typed)
    occupied: Any = lambda t: math.sin(t) > -0.5  # noqa: E731  (typed)
    made, t = ring(**plain), start
    begin = made.stamp(start)
    found: dict[str, list[tuple[int, int]]] = {"busy": [], "idle": []}
    for step in steps:
        t += step
        for name, busy in (("busy", wave), ("idle", None)):
            after = found[name][-1][0] if found[name] else begin
            found[name] += samples(made, after, t, busy, occupied)

    assert found["busy"] == samples(ring(**plain), begin, t, wave, occupied)
    assert found["idle"] == [(stamp, 0) for stamp, _ in found["busy"]]
