"""The innermost phase counts, on the thread that trains, and all of them add up."""

import os
import threading

import pytest

from gpugauge.hook import phases
from gpugauge.hook.phases import EVALUATING, LOADING, OTHER, STARTING, TRAINING, Phases
from gpugauge.hook.record import Page
from gpugauge.wire import record as wire_page
from gpugauge.wire.record import PHASES


def shown(page: Page, now: int = 100) -> tuple[int, int, list[int]]:
    """Return the phase on the page, since when, and nanoseconds in each phase until `now`."""
    assert page.descriptor is not None
    found = wire_page.read(os.pread(page.descriptor, wire_page.PAGE_BYTES, 0), now, now / 1e9)
    assert found is not None
    assert page.words is not None
    return PHASES.index(found.phase), page.words[wire_page.SINCE], [round(s * 1e9) for s in found.seconds.values()]


def tracked(page: Page) -> Phases:
    found = Phases(page)
    found._since = 0
    found.write(0, 0)
    return found


def test_phases_nest_and_add_up(page: Page) -> None:
    found = tracked(page)
    assert shown(page) == (STARTING, 0, [0, 100, 0, 0, 0, 0, 0, 0])
    found.switch(LOADING, 10)
    found.arrive(TRAINING, STARTING, 30)
    found.enter(EVALUATING, 60)
    found.switch(LOADING, 70)
    assert shown(page)[:2] == (LOADING, 70)
    found.arrive(TRAINING, EVALUATING, 75)
    assert shown(page)[:2] == (EVALUATING, 75)
    found.leave(100)
    spent = {STARTING: 10, LOADING: 25, TRAINING: 30, EVALUATING: 35}
    assert shown(page) == (TRAINING, 100, [spent.get(phase, 0) for phase in range(len(PHASES))])
    assert shown(page, 110)[2][TRAINING] == 40
    found.write(7, 8)
    assert shown(page) == (TRAINING, 100, [spent.get(phase, 0) for phase in range(len(PHASES))])


def test_a_step_ends_the_evaluation_but_not_what_the_program_said(page: Page) -> None:
    found = tracked(page)
    found.switch(LOADING, 1)
    found.arrive(EVALUATING, STARTING, 2)
    found.settle(TRAINING, 3)
    assert found.current == TRAINING
    found.enter(OTHER, 4)
    found.settle(TRAINING, 5)
    assert found.current == OTHER


def test_the_thread_that_steps_is_followed() -> None:
    found = Phases(Page())
    thread = threading.Thread(target=found.adopt)
    thread.start()
    thread.join()
    assert not found.here()
    found.adopt()
    assert found.here()


@pytest.mark.parametrize(
    ("name", "phase"), [("eval", EVALUATING), (" Validation ", EVALUATING), ("training", TRAINING), ("dinner", OTHER)]
)
def test_what_programs_call_their_phases(name: str, phase: int) -> None:
    assert phase == phases.named(name)
