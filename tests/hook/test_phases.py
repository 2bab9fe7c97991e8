"""The innermost phase on the training thread counts, and all phases add up."""

import os
import threading

import pytest

from gpugauge.hook.record import CHECKPOINTING, EVALUATING, LOADING, OTHER, STARTING, TRAINING, Record
from gpugauge.wire import record as wire_record
from gpugauge.wire.record import PHASES


def shown(record: Record, now: int = 100) -> tuple[int, int, list[int]]:
    """Return the phase on the record, since when, and nanoseconds in each phase until `now`."""
    assert record.descriptor is not None
    found = wire_record.read(os.pread(record.descriptor, wire_record.RECORD_BYTES, 0), now, now / 1e9)
    assert found is not None
    return PHASES.index(found.phase), record.words[wire_record.SINCE], [round(s * 1e9) for s in found.seconds.values()]


@pytest.fixture(autouse=True)
def _since_zero(record: Record) -> None:
    record.since = record.words[wire_record.SINCE] = 0


def test_phases_nest_and_add_up(record: Record) -> None:
    assert shown(record) == (STARTING, 0, [0, 100, 0, 0, 0, 0, 0, 0])
    record.switch(LOADING, 10)
    record.end_wait(TRAINING, STARTING, 30)
    record.enter(EVALUATING, 60)
    record.switch(LOADING, 70)
    assert shown(record)[:2] == (LOADING, 70)
    record.end_wait(TRAINING, EVALUATING, 75)
    assert shown(record)[:2] == (EVALUATING, 75)
    record.leave(EVALUATING, 100)
    spent = {STARTING: 10, LOADING: 25, TRAINING: 30, EVALUATING: 35}
    assert shown(record) == (TRAINING, 100, [spent.get(phase, 0) for phase in range(len(PHASES))])
    assert shown(record, 110)[2][TRAINING] == 40


def test_a_step_ends_the_evaluation_but_not_an_entered_phase(record: Record) -> None:
    record.switch(LOADING, 1)
    record.end_wait(EVALUATING, STARTING, 2)
    record.set_base(TRAINING, 3)
    assert record.phase == TRAINING
    record.enter(OTHER, 4)
    record.set_base(TRAINING, 5)
    assert record.phase == OTHER


def test_a_clock_that_goes_back_takes_no_time_away(record: Record) -> None:
    record.switch(TRAINING, 50)
    record.switch(EVALUATING, 20)
    record.switch(TRAINING, 60)
    assert shown(record, 60) == (TRAINING, 60, [0, 50, 0, 40, 0, 0, 0, 0])


def test_the_thread_that_steps_is_followed() -> None:
    found = Record()
    thread = threading.Thread(target=found.follow_caller)
    thread.start()
    thread.join()
    assert not found.on_training_thread()
    found.follow_caller()
    assert found.on_training_thread()


def test_coroutines_leave_their_own_phase_in_any_order(record: Record) -> None:
    record.switch(TRAINING, 10)
    record.base = TRAINING
    record.enter(CHECKPOINTING, 20)
    record.enter(EVALUATING, 30)
    record.leave(CHECKPOINTING, 40)
    assert shown(record)[:2] == (EVALUATING, 30)
    record.leave(EVALUATING, 50)

    spent = {STARTING: 10, TRAINING: 60, CHECKPOINTING: 10, EVALUATING: 20}
    assert shown(record) == (TRAINING, 50, [spent.get(phase, 0) for phase in range(len(PHASES))])
