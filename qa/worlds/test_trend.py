"""The growth of drawn histories of memory: each statement is true for the drawn level, and clear leaks are found."""

from __future__ import annotations

import os
import random

import pytest
from tests.drawn import EVERYTHING

from gpugauge.verdict.memory.trend import Growth, Series
from qa.worlds.histories import MIB, History, history

_LATE = 4  # samples after which a change shows
SEED, COUNT = map(int, os.environ.get("GPUGAUGE_TRENDS", "23 150" if EVERYTHING else "23 50").split())
_CHUNK = 200  # histories of one test, which has a time limit


def mistake(h: History, found: Growth, now: float) -> str | None:
    """Return what is wrong with a growth that was stated at a progress; None if it is true."""
    true = h.truth(found.since, found.until)
    if not found.lower <= true <= found.upper:
        return f"{h.kind}: {found}, but the level grew by {true:g}"
    if now > found.since and h.truth(now - (now - found.since) / 4, now) < 0.5 * true:
        return f"{h.kind}: {found}, but the level no longer grows"
    return None


@pytest.mark.everything
@pytest.mark.parametrize("first", range(0, COUNT, _CHUNK))
def test_drawn_histories_have_no_false_growth(first: int) -> None:
    count = min(_CHUNK, COUNT - first)
    draw = random.Random(SEED + first)
    wrong, clear, missed, stated = [], 0, [], 0
    for _ in range(count):
        h, series, said = history(draw), Series(), False
        recent: list[float] = []
        for progress, time, value in h.samples:
            series.add(progress, time, value)
            recent = [*recent, progress][-_LATE - 1 :]
            if (growth := series.growth) is not None:
                said = True
                if text := mistake(h, growth, recent[0]):
                    wrong.append(text)
                    break
        stated += said
        if h.growth is not None:
            clear += 1
            missed += [] if said else [h]
    assert not wrong
    assert stated >= count / 4, "a test without statements shows nothing"
    assert clear
    assert len(missed) <= max(1.0, clear / 10)


def test_a_growth_has_the_rate_of_the_leak() -> None:
    series = Series()
    for i in range(40):
        series.add(100.0 * i, 5.0 * i, 1e9 + 3.0 * MIB * i)
    growth = series.growth
    assert growth is not None
    assert growth.lower < 3 * MIB / 100 < growth.upper
    assert round(growth.per_second) == round(3 * MIB / 5)


def test_a_restart_forgets_the_growth() -> None:
    series = Series()
    for i in range(40):
        series.add(float(i), 5.0 * i, 1e9 + MIB * i)
    assert series.growth is not None
    series.add(1.0, 201.0, 1e9)
    assert series.growth is None


@pytest.mark.parametrize(("flat", "stated"), [(0, True), (4, False), (40, False)])
def test_a_growth_that_has_ended_is_no_longer_stated(flat: int, stated: bool) -> None:
    series = Series()
    for i in range(32 + flat):
        series.add(float(i), 5.0 * i, 1e9 + MIB * min(i, 31))
    assert (series.growth is not None) == stated
