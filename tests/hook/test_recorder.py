"""Steps, ticks and waits: counts, durations, and the words of the shared record."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import pytest

from gpugauge.hook.purposes import Purposes
from gpugauge.hook.record import EVALUATING, TRAINING, Record
from gpugauge.hook.recorder import BATCHES, OPTIMIZER, TICK, Recorder, Rounds
from gpugauge.wire import record as wire_record

MS = 1_000_000


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Record())


def steps(recorder: Recorder) -> int:
    recorder.drain()
    assert recorder.record.words[wire_record.STEPS] == recorder.step_tally.count
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
        recorder.add_batch(3, number * MS + 3)
        recorder.drain()
    assert (steps(recorder), recorder.step_tally.nanoseconds) == (10, 9 * MS)
    assert (recorder.batch_tally.count, recorder.batch_tally.nanoseconds) == (10, 30)
    assert recorder.record.words[wire_record.BATCHES] == 10


def test_the_time_of_the_last_event_is_unix_time(recorder: Recorder) -> None:
    before, now = time.time(), time.perf_counter_ns()
    recorder.optimizer_step(1, now)
    recorder.add_batch(0, now)
    recorder.drain()
    assert recorder.step_tally.last == pytest.approx(before, abs=60)
    assert recorder.step_tally.last == recorder.batch_tally.last


def test_a_cleared_recorder_starts_from_zero(recorder: Recorder) -> None:
    recorder.optimizer_step(1, 0)
    recorder.optimizer_step(1, 1)
    recorder.record.close()
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
    words = recorder.record.words[wire_record.WAITED :]
    return {phase: words[phase] for phase in range(len(wire_record.PHASES)) if words[phase]}


def test_waits_add_up_by_the_phase_that_they_serve(recorder: Recorder) -> None:
    purposes = Purposes(recorder, lambda: True)
    purposes.book(None, 5)
    purposes.book(None, 2, TRAINING)
    purposes.book(None, 1, TRAINING)
    purposes.book(None, 2, EVALUATING)
    purposes.book(None, -3, TRAINING)  # a clock that goes back
    assert waited(recorder) == {TRAINING: 8, EVALUATING: 2}


def test_waits_of_another_thread_count_once_it_trains(recorder: Recorder) -> None:
    purposes = Purposes(recorder, lambda: True)
    for thread, phase, nanoseconds in ((7, TRAINING, 5), (7, EVALUATING, 3), (8, TRAINING, 50)):
        run = purposes.elsewhere(thread, phase)
        run.waited += nanoseconds
        run.count += 1
    assert waited(recorder) == {}
    purposes.adopt(7)
    assert waited(recorder) == {TRAINING: 5, EVALUATING: 3}
    assert recorder.record.words[wire_record.BATCHES] == 2


def test_a_thread_trains_on_what_it_has_taken_last(recorder: Recorder) -> None:
    purposes = Purposes(recorder, lambda: True)
    for phase, last in ((TRAINING, 1), (EVALUATING, 2)):
        run = purposes.elsewhere(7, phase)
        run.waited, run.count, run.last = 5, 1, last
    purposes.adopt(7)
    assert waited(recorder) == {TRAINING: 10}


def test_the_waits_of_other_threads_are_bounded(recorder: Recorder) -> None:
    purposes = Purposes(recorder, lambda: True)
    for number in range(100):
        purposes.elsewhere(number, TRAINING)
    assert len(purposes._elsewhere) <= 64


def counted(optimizers: Sequence[int]) -> int:
    rounds = Rounds()
    return sum(rounds.step(optimizer) for optimizer in optimizers)


@pytest.mark.parametrize(
    ("optimizers", "steps"),
    [
        ([], 0),
        ([1], 1),
        ([1] * 7, 7),
        ([1, 2] * 7, 7),  # a generator and a discriminator, or a wrapper that reports each step twice
        ([1, 1, 1, 2] * 7, 21),  # one optimizer steps more often
        ([1, 2, 2, 2] * 7, 21),
        ([1, 3, 2, 2, 2] * 7, 21),
        (list(range(50)) * 7, 7),  # an optimizer for each parameter
        ([1] * 7 + [2] * 8, 15),  # one training after another
        ([1, 2] * 4 + [3, 4] * 5, 9),
        (([1] * 5 + [2] * 5) * 12, 120),  # in turn, each several steps long
        ([1] * 20 + [2] * 20 + [3] * 20 + [1] * 20, 80),
        ([1] * 20 + [2] * 20 + [1, 2] * 60, 100),
    ],
)
def test_a_round_is_a_step(optimizers: list[int], steps: int) -> None:
    assert counted(optimizers) == steps


class Program:
    """A program that makes optimizers and steps them; `steps` counts the iterations of its loops."""

    def __init__(self, r: random.Random) -> None:
        self.r, self.steps, self.rounds, self.counted = r, 0, Rounds(), 0
        self._free = list(range(1000))
        self.parameters: set[int] = set()

    def make(self, number: int) -> list[int]:
        found = [self._free.pop() for _ in range(number)]
        for key in found:
            self.rounds.create(key)
        return found

    def drop(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.rounds.forget(key)
        self._free += keys  # the next optimizer has the identity of one that is gone

    def step(self, key: int) -> None:
        self.counted += self.rounds.step(key)

    def loop(self, optimizers: Sequence[int], iterations: int, often: int = 1) -> None:
        """Step every optimizer once in an iteration, the first one `often` times; those are steps."""
        for _ in range(iterations):
            for _ in range(often):
                self.step(optimizers[0])
            for optimizer in optimizers[1:]:
                self.step(optimizer)
        self.steps += iterations * often
        self.parameters = set(optimizers)


def sequence(p: Program) -> None:
    """Several trainings one after another, their optimizers made in advance or when needed, dropped or kept."""
    in_advance, dropped = p.r.random() < 0.3, p.r.random() < 0.5
    sizes = [p.r.choice([1, 1, 1, 2, 5]) for _ in range(p.r.randint(2, 6))]
    made = [p.make(size) for size in sizes] if in_advance else []
    for number, size in enumerate(sizes):
        optimizers = made[number] if in_advance else p.make(size)
        # Without a second iteration nothing tells several optimizers from one after another, if all exist.
        p.loop(optimizers, p.r.randint(2 if in_advance else 1, 6), p.r.choice([1, 1, 3]) if size > 1 else 1)
        if dropped and not in_advance:
            p.drop(optimizers)


def meta_learning(p: Program) -> None:
    """An inner optimizer for each task, and an outer one: the inner steps are the most frequent."""
    (outer,) = p.make(1)
    inner_steps, dropped = p.r.randint(1, 4), p.r.random() < 0.5
    for _ in range(p.r.randint(2, 8)):
        inner = p.make(1)
        for _ in range(inner_steps):
            p.step(inner[0])
        if dropped:
            p.drop(inner)
        p.step(outer)
        p.steps += inner_steps


def in_turn(p: Program) -> None:
    """Optimizers that take turns, each for several steps, and train together at the end."""
    optimizers = p.make(p.r.randint(2, 4))
    for _ in range(p.r.randint(1, 4)):
        for optimizer in optimizers:
            p.loop([optimizer], p.r.randint(2, 8))
    p.loop(optimizers, p.r.randint(2, 8))


def one_loop(p: Program) -> None:
    optimizers = p.make(p.r.choice([1, 1, 2, 3, 20]))
    p.loop(optimizers, p.r.randint(1, 30), p.r.choice([1, 1, 2, 5]) if len(optimizers) > 1 else 1)
    assert p.rounds.loop == p.parameters


def drawn(seed: int) -> Iterator[tuple[int, int]]:
    p = Program(random.Random(seed))
    for program in p.r.sample([sequence, meta_learning, in_turn, one_loop], p.r.randint(1, 2)):
        program(p)
        yield p.steps, p.counted


def test_drawn_programs_count_as_they_count_themselves() -> None:
    wrong = {seed: list(drawn(seed)) for seed in range(2000)}
    assert {seed: found for seed, found in wrong.items() if any(a != b for a, b in found)} == {}
