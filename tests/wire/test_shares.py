"""The shares of a training, in words and in numbers."""

from __future__ import annotations

from gpugauge.wire.shares import divided, sentence, shares
from tests.drawn import cases


@cases(
    ("shares", "text"),
    [
        ({}, ""),
        (
            {"data": 0.7, "peers": 0.1, "checkpointing": 0.15, "rest": 0.05},
            ("70 % waiting for data, 15 % writing checkpoints, 10 % waiting for other ranks, 5 % the rest"),
        ),
        ({"data": 0.001, "rest": 0.999}, "100 % the rest"),
        ({"a_later_part": 0.5, "rest": 0.5}, "50 % the rest"),
    ],
)
def test_parts_by_size(shares: dict[str, float], text: str) -> None:
    assert sentence(shares) == text


def test_a_thread_that_loads_batches_itself_and_is_queued_waits_for_a_cpu() -> None:
    found, thread = {"data": 0.6, "rest": 0.4}, {"running": 10.0, "runnable": 30.0}

    assert divided(found, thread, 100.0, 50.0) == ({"data": 0.1, "rest": 0.9}, {"running": 0.1, "runnable": 0.8})
    assert divided(found, thread, 100.0, 90.0)[0] == {"data": 0.0, "rest": 1.0}
    assert divided(found, {}, 100.0, 50.0) == (found, {})


def test_the_start_is_no_part_of_a_training() -> None:
    phases = {"starting": 60.0, "training": 3.0, "evaluating": 1.0}

    assert shares(phases, 1.0, None) == {"data": 0.25, "evaluating": 0.25, "rest": 0.5}
    assert shares({"starting": 60.0}, None, None) == {}
