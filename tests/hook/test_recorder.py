"""Steps are rounds of optimizers, and durations are the times between rounds."""

import time
from collections.abc import Sequence

import pytest

from gpugauge.hook.recorder import Recorder

MS = 1_000_000


def counted(optimizers: Sequence[int]) -> Recorder:
    recorder = Recorder()
    recorder.steps.extend((optimizer, number * MS) for number, optimizer in enumerate(optimizers))
    recorder.drain()
    return recorder


@pytest.mark.parametrize(
    ("optimizers", "steps"),
    [
        ([], 0),
        ([1], 1),
        ([1] * 7, 7),
        ([1, 2] * 7, 7),  # a generator and a discriminator, or a wrapper that reports each step twice
        ([1, 1, 1, 2] * 7, 21),  # one optimizer steps more often
        ([1, 2, 2, 2] * 7, 21),
        (list(range(50)) * 7, 7),  # an optimizer for each parameter
        ([1] * 7 + [2] * 8, 14),  # one training after another: the first step of the second joins the last round
    ],
)
def test_a_round_ends_when_an_optimizer_steps_again(optimizers: list[int], steps: int) -> None:
    assert counted(optimizers).step_tally.count == steps


def test_durations_are_times_between_rounds() -> None:
    tally = counted([1, 2] * 4).step_tally
    assert (tally.nanoseconds, sum(tally.log2)) == (3 * 2 * MS, 3)


def test_draining_in_parts_gives_the_same_counts() -> None:
    recorder = Recorder()
    for number in range(10):
        recorder.steps.append((7, number * MS))
        recorder.batches.append((number * MS, number * MS + 3, True))
        recorder.drain()
    assert (recorder.step_tally.count, recorder.step_tally.nanoseconds) == (10, 9 * MS)
    assert (recorder.batch_tally.count, recorder.batch_tally.nanoseconds) == (10, 30)


def test_the_time_of_the_last_event_is_unix_time() -> None:
    recorder = Recorder()
    before = time.time()
    now = time.perf_counter_ns()
    recorder.steps.append((1, now))
    recorder.batches.append((now, now, True))
    recorder.drain()
    assert recorder.step_tally.last == pytest.approx(before, abs=60)
    assert recorder.step_tally.last == recorder.batch_tally.last


def test_a_cleared_recorder_starts_from_zero() -> None:
    recorder = counted([1, 1])
    recorder.clear()
    recorder.steps.append((1, 0))
    recorder.drain()
    assert (recorder.step_tally.count, recorder.step_tally.nanoseconds) == (1, 0)
