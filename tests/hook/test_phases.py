"""The innermost phase on the training thread counts, and all phases add up."""

import os
import threading

import pytest

from gpugauge.hook.counts import phases
from gpugauge.hook.counts.phases import CHECKPOINTING, EVALUATING, LOADING, OTHER, STARTING, TRAINING, Phases
from gpugauge.hook.counts.record import RecordMemory
from gpugauge.wire import record as wire_record
from gpugauge.wire.record import PHASES


def shown(record: RecordMemory, now: int = 100) -> tuple[int, int, list[int]]:
    """Return the phase on the record, since when, and nanoseconds in each phase until `now`."""
    assert record.descriptor is not None
    found = wire_record.read(os.pread(record.descriptor, wire_record.RECORD_BYTES, 0), now, now / 1e9)
    assert found is not None
    return PHASES.index(found.phase), record.words[wire_record.SINCE], [round(s * 1e9) for s in found.seconds.values()]


def tracked(record: RecordMemory) -> Phases:
    found = Phases(record)
    found.live.since = record.words[wire_record.SINCE] = 0
    return found


def test_phases_nest_and_add_up(record: RecordMemory) -> None:
    found = tracked(record)
    assert shown(record) == (STARTING, 0, [0, 100, 0, 0, 0, 0, 0, 0])
    found.switch(LOADING, 10)
    found.end_wait(TRAINING, STARTING, 30)
    found.enter(EVALUATING, 60)
    found.switch(LOADING, 70)
    assert shown(record)[:2] == (LOADING, 70)
    found.end_wait(TRAINING, EVALUATING, 75)
    assert shown(record)[:2] == (EVALUATING, 75)
    found.leave(EVALUATING, 100)
    spent = {STARTING: 10, LOADING: 25, TRAINING: 30, EVALUATING: 35}
    assert shown(record) == (TRAINING, 100, [spent.get(phase, 0) for phase in range(len(PHASES))])
    assert shown(record, 110)[2][TRAINING] == 40


def test_a_step_ends_the_evaluation_but_not_an_entered_phase(record: RecordMemory) -> None:
    found = tracked(record)
    found.switch(LOADING, 1)
    found.end_wait(EVALUATING, STARTING, 2)
    found.set_base(TRAINING, 3)
    assert found.live.phase == TRAINING
    found.enter(OTHER, 4)
    found.set_base(TRAINING, 5)
    assert found.live.phase == OTHER


def test_a_clock_that_goes_back_takes_no_time_away(record: RecordMemory) -> None:
    found = tracked(record)
    found.switch(TRAINING, 50)
    found.switch(EVALUATING, 20)
    found.switch(TRAINING, 60)
    assert shown(record, 60) == (TRAINING, 60, [0, 50, 0, 40, 0, 0, 0, 0])


def test_the_thread_that_steps_is_followed() -> None:
    found = Phases(RecordMemory())
    thread = threading.Thread(target=found.follow_caller)
    thread.start()
    thread.join()
    assert not found.on_training_thread()
    found.follow_caller()
    assert found.on_training_thread()


@pytest.mark.parametrize(
    ("name", "phase"), [("eval", EVALUATING), (" Validation ", EVALUATING), ("training", TRAINING), ("unknown", OTHER)]
)
def test_the_names_of_phases(name: str, phase: int) -> None:
    assert phase == phases.phase_index(name)


def test_coroutines_leave_their_own_phase_in_any_order(record: RecordMemory) -> None:
    found = tracked(record)
    found.switch(TRAINING, 10)
    found.live.base = TRAINING
    found.enter(CHECKPOINTING, 20)
    found.enter(EVALUATING, 30)
    found.leave(CHECKPOINTING, 40)
    assert shown(record)[:2] == (EVALUATING, 30)
    found.leave(EVALUATING, 50)

    spent = {STARTING: 10, TRAINING: 60, CHECKPOINTING: 10, EVALUATING: 20}
    assert shown(record) == (TRAINING, 50, [spent.get(phase, 0) for phase in range(len(PHASES))])
