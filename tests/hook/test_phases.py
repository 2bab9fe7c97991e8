"""The innermost phase counts, on the thread that trains, and all of them add up."""

import threading

import pytest

from gpugauge.hook import phases
from gpugauge.hook.phases import EVALUATING, LOADING, OTHER, STARTING, TRAINING, Phases
from gpugauge.wire_page import PHASES


class Written:
    """Stands for the page: keeps what was written last."""

    def __init__(self) -> None:
        self.phase, self.since, self.seconds = -1, -1, [0] * len(PHASES)

    def write(self, phase: int, since: int, steps: int, batches: int, nanoseconds: list[int]) -> None:
        self.phase, self.since, self.seconds = phase, since, list(nanoseconds)


def tracked() -> tuple[Phases, Written]:
    page = Written()
    found = Phases(page, lambda: (0, 0))  # type: ignore[arg-type]  # a stand-in
    found._since = 0
    return found, page


def test_phases_nest_and_add_up() -> None:
    found, page = tracked()
    found.enter(LOADING, 10)
    found.leave(30, TRAINING)
    found.enter(EVALUATING, 60)
    found.enter(LOADING, 70)
    assert (page.phase, page.since) == (LOADING, 70)
    found.leave(75, TRAINING)
    assert (page.phase, page.since) == (EVALUATING, 75)
    found.leave(100)
    assert (page.phase, page.since) == (TRAINING, 100)
    spent = {STARTING: 10, LOADING: 25, TRAINING: 30, EVALUATING: 35}
    assert [spent.get(phase, 0) for phase in range(len(PHASES))] == page.seconds


def test_a_step_ends_the_evaluation_but_not_what_the_program_said() -> None:
    found, _ = tracked()
    found.enter(LOADING, 1)
    found.leave(2, EVALUATING)
    found.settle(TRAINING, 3)
    assert found.current == TRAINING
    found.enter(OTHER, 4)
    found.settle(TRAINING, 5)
    assert found.current == OTHER


def test_the_thread_that_steps_is_followed() -> None:
    found, _ = tracked()
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
