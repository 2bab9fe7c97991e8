"""Steps, ticks and waits: counts, durations, and the words of the shared record."""

import time

import pytest

from gpugauge.hook.counts.phases import EVALUATING, TRAINING
from gpugauge.hook.counts.record import RecordMemory
from gpugauge.hook.counts.recorder import BATCHES, OPTIMIZER, TICK, Recorder
from gpugauge.wire import record as wire_record

MS = 1_000_000


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(RecordMemory())


def steps(recorder: Recorder) -> int:
    recorder.drain()
    assert recorder._record.words[wire_record.STEPS] == recorder.step_tally.count
    return recorder.step_tally.count


def test_durations_are_times_between_rounds(recorder: Recorder) -> None:
    for number, optimizer in enumerate([1, 2] * 4):
        recorder.optimizer_step(optimizer, number * MS)
    assert steps(recorder) == 4
    tally = recorder.step_tally
    assert (tally.nanoseconds, sum(tally.log2)) == (3 * 2 * MS, 3)


def test_draining_in_parts_gives_the_same_counts(recorder: Recorder) -> None:
    for number in range(10):
        recorder.optimizer_step(7, number * MS)
        recorder.add_batch((number * MS, number * MS + 3, TRAINING))
        recorder.drain()
    assert (steps(recorder), recorder.step_tally.nanoseconds) == (10, 9 * MS)
    assert (recorder.batch_tally.count, recorder.batch_tally.nanoseconds) == (10, 30)
    assert recorder._record.words[wire_record.BATCHES] == 10


def test_the_time_of_the_last_event_is_unix_time(recorder: Recorder) -> None:
    before, now = time.time(), time.perf_counter_ns()
    recorder.optimizer_step(1, now)
    recorder.add_batch((now, now, TRAINING))
    recorder.drain()
    assert recorder.step_tally.last == pytest.approx(before, abs=60)
    assert recorder.step_tally.last == recorder.batch_tally.last


def test_a_cleared_recorder_starts_from_zero(recorder: Recorder) -> None:
    recorder.optimizer_step(1, 0)
    recorder.optimizer_step(1, 1)
    recorder._record.close()
    recorder.clear()
    recorder.optimizer_step(1, 0)
    assert (steps(recorder), recorder.step_tally.nanoseconds) == (1, 0)


@pytest.mark.parametrize("before", [0, 1, 3, 10])
@pytest.mark.parametrize("in_tick", [0, 1, 3])
def test_the_steps_of_a_tick_count_as_one(recorder: Recorder, before: int, in_tick: int) -> None:
    # `before` training steps without ticks, then 20 ticks, each after `in_tick` steps of the optimizer.
    for _ in range(before):
        recorder.optimizer_step(1, 0)
    for _ in range(20):
        for _ in range(in_tick):
            recorder.optimizer_step(1, 0)
        recorder.tick(0)
    # Without a step of the optimizer in a tick, the last of the steps before is the first tick.
    assert steps(recorder) == 20 + before - (before > 0 and in_tick == 0)
    assert recorder.source == TICK


def test_steps_by_batches_are_those_that_the_caller_has_seen(recorder: Recorder) -> None:
    recorder.source = BATCHES
    recorder.add_steps(3, MS)
    recorder.optimizer_step(1, 2 * MS)
    assert steps(recorder) == 3
    assert recorder.source != OPTIMIZER


def waited(recorder: Recorder) -> dict[int, int]:
    words = recorder._record.words[wire_record.WAITED :]
    return {phase: words[phase] for phase in range(len(wire_record.PHASES)) if words[phase]}


def test_waits_add_up_by_the_phase_that_they_serve(recorder: Recorder) -> None:
    recorder.add_wait(5, None)
    recorder.add_batch((5, 7, TRAINING))
    recorder.add_wait(1, TRAINING)
    recorder.add_batch((8, 10, EVALUATING))
    recorder.add_wait(-3, TRAINING)  # a clock that goes back
    recorder.drain()
    assert waited(recorder) == {TRAINING: 8, EVALUATING: 2}
    assert recorder.batch_tally.count == 2


def test_waits_of_another_thread_count_once_it_trains(recorder: Recorder) -> None:
    recorder.add_wait_elsewhere(7, (0, 5, TRAINING))
    recorder.add_wait_elsewhere(8, (0, 50, TRAINING))
    assert waited(recorder) == {}
    recorder.count_waits_of(7)
    assert waited(recorder) == {TRAINING: 5}
    assert recorder._record.words[wire_record.BATCHES] == 1


def test_the_waits_of_other_threads_are_bounded(recorder: Recorder) -> None:
    for number in range(5000):
        recorder.add_wait_elsewhere(number % 100, (0, 5, TRAINING))
        recorder.add_wait_elsewhere(99, (0, 5, TRAINING))
    assert max(len(waits) for waits in recorder._elsewhere.values()) <= 1000
    assert len(recorder._elsewhere) <= 64
