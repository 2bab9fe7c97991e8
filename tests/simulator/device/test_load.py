from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.simulator.device.activity import load

SQUARE = {"shape": "square", "high": 0.8, "low": 0.2, "period": 10.0, "duty": 0.3}
POINTS = {"shape": "points", "points": [[10, 0.0], [20, 1.0], [40, 0.5]], "repeat": False}


def mean(plain: dict[str, object], start: float, end: float) -> float:
    made = load(plain)
    return (made(end) - made(start)) / (end - start)


def test_square() -> None:
    means = [
        (0, 3, 0.8),
        (3, 10, 0.2),
        (1, 2, 0.8),
        (0, 10, 0.38),
        (2, 4, 0.5),
        (1000, 1003, 0.8),
        (-7, 0, 0.2),
        (-10, -7, 0.8),
    ]
    assert [mean(SQUARE, start, end) for start, end, _ in means] == pytest.approx([value for *_, value in means])


def test_sine() -> None:
    wave: dict[str, object] = {"shape": "sine", "low": 0.1, "high": 0.9, "period": 60.0}

    assert mean(wave, 0, 60) == pytest.approx(0.5)
    assert mean(wave, 0, 30) == pytest.approx(0.5)
    assert mean(wave, 15, 45) == pytest.approx(0.5 + 0.4 * 2 / math.pi)


def test_points() -> None:
    means = [(0, 10, 0.0), (10, 20, 0.5), (20, 40, 0.75), (40, 90, 0.5), (15, 20, 0.75), (10, 15, 0.25), (-5, 5, 0.0)]
    assert [mean(POINTS, start, end) for start, end, _ in means] == pytest.approx([value for *_, value in means])


def test_points_repeat() -> None:
    plain: dict[str, object] = {"shape": "points", "points": [[0, 0.0], [10, 1.0], [20, 1.0]], "repeat": True}

    assert mean(plain, 0, 20) == pytest.approx(0.75)
    assert mean(plain, 100, 110) == pytest.approx(0.5)
    assert mean(plain, 110, 120) == pytest.approx(1.0)


LEVELS = st.floats(0.2, 0.8)
SHAPES = st.one_of(
    st.fixed_dictionaries({"shape": st.just("constant"), "level": LEVELS}),
    st.fixed_dictionaries(
        {
            "shape": st.just("square"),
            "high": LEVELS,
            "low": LEVELS,
            "period": st.floats(0.1, 100),
            "duty": st.floats(0, 1),
        }
    ),
    st.fixed_dictionaries({"shape": st.just("sine"), "low": LEVELS, "high": LEVELS, "period": st.floats(0.1, 100)}),
    st.fixed_dictionaries(
        {
            "shape": st.just("points"),
            "points": st.lists(LEVELS, min_size=1, max_size=6).map(
                lambda levels: [[3.0 * i + 1, v] for i, v in enumerate(levels)]
            ),
            "repeat": st.booleans(),
        }
    ),
)


@given(SHAPES, st.floats(0, 1e5), st.floats(0.01, 100))
def test_any_mean_is_a_share(shape: dict[str, object], start: float, width: float) -> None:
    assert -1e-6 <= mean(shape, start, start + width) <= 1 + 1e-6
