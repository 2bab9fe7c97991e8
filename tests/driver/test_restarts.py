"""The delays between workers that fail, in drawn sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.driver.restarts import Restarts
from tests.drawn import cases

DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds; 10 afterwards
# How long each worker lives, in seconds, and whether it replies.
LIVES = st.lists(st.tuples(st.sampled_from((0.0, 3.0, 29.0, 31.0, 59.0)), st.booleans()), min_size=1, max_size=12)


@given(LIVES)
def test_a_worker_proves_itself_only_by_replies_for_half_a_minute(lives: list[tuple[float, bool]]) -> None:
    restarts, now, failures = Restarts(), 0.0, 0
    for seconds, replies in lives:
        restarts.record_start(now)
        if replies:
            restarts.record_replies(now + seconds / 2)
            restarts.record_replies(now + seconds)
            failures = 0 if seconds > 30 else failures
        now += seconds
        restarts.after_worker_failure(now)
        assert restarts.next_start - now == pytest.approx(DELAYS[failures] if failures < len(DELAYS) else 10.0)
        now, failures = restarts.next_start, failures + 1
    assert restarts.count == len(lives)


@cases("lived", [0.1, 5.0, 29.9])
def test_workers_that_reply_and_fail_soon_are_started_ever_later(lived: float) -> None:
    restarts, now, delays = Restarts(), 0.0, []
    for _ in range(8):
        restarts.record_start(now)
        restarts.record_replies(now + lived)
        now += lived
        restarts.after_worker_failure(now)
        delays.append(restarts.next_start - now)
        now = restarts.next_start

    assert delays == pytest.approx([*DELAYS, 10.0, 10.0])


def test_driver_that_cannot_be_opened_is_tried_ever_later() -> None:
    restarts, delays = Restarts(), []
    for _ in range(8):
        restarts.after_driver_failure(0.0)
        delays.append(restarts.next_start)

    assert delays == [2.0**n if n < 6 else 60.0 for n in range(8)]
    restarts.start_now()
    assert restarts.next_start == 0.0
    restarts.after_driver_failure(0.0)
    assert restarts.next_start == 60.0  # the back-off stays
    restarts.reset()
    restarts.after_driver_failure(0.0)
    assert restarts.next_start == 1.0
