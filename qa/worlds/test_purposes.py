"""What batches are for, in drawn programs: windows fetched ahead, evaluations that end or are cut short, teachers with
a loader of their own, batches fetched without gradients or in evaluation mode. Each wait and batch is found where it
belongs, whatever the modes are.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests import needs
from tests.drawn import seeds

needs.torch()

from gpugauge.hook.purposes import MOST_PENDING, Purposes, Run  # noqa: E402 - after the skip
from gpugauge.hook.record import (  # noqa: E402 - after the skip
    EVALUATING,
    TRAINING,
    Record,
)
from gpugauge.hook.recorder import Recorder  # noqa: E402 - after the skip
from gpugauge.wire.record import SAMPLES, WAITED  # noqa: E402 - after the skip

_FETCHED, _USED = 2_000, 5_000_000  # nanoseconds between two batches: only fetched, or used


class Program:
    """A drawn program. `waited` and `samples` are what it knows itself."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now = rng, 10**9
        self.record = Record()
        self.recorder = Recorder(self.record)
        self.purposes = Purposes(self.recorder, lambda: True)
        self.waited = {TRAINING: 0, EVALUATING: 0}
        self.samples = 0
        self.in_eval_mode = False
        self.pending = 0  # the most batches that the training has taken ahead

    def fetch(self, run: Run, purpose: int, *, without_grad: bool = False) -> None:
        """Take a batch of an iterator."""
        start, waited = self.now, self.rng.randrange(10_000_000)
        self.now += waited
        self.purposes.take(run, start, self.now, self.in_eval_mode, without_grad)
        size = self.rng.randrange(1, 9)

        def read(_: object, work: object) -> None:
            work.samples += size  # type: ignore[attr-defined]  # a Work

        self.purposes.book(run, waited, None, None, read)
        self.waited[purpose] += waited
        self.samples += size * (purpose == TRAINING)

    def end(self, run: Run, purpose: int) -> None:
        """Wait for the end of an iterator."""
        start, waited = self.now, self.rng.randrange(1_000_000)
        self.now += waited
        self.purposes.end(run, start, self.now)
        self.purposes.book(run, waited)
        self.waited[purpose] += waited

    def train(self, teacher: Run | None = None, *, trains_in_eval_mode: bool = False) -> None:
        """Train for an epoch, with so many batches fetched before they are used."""
        run, ahead, without_grad = self.purposes.start(), self.rng.choice((1, 1, 4)), self.rng.random() < 0.3
        batches = self.rng.randrange(1, 20)
        if teacher is not None:
            self.in_eval_mode = False
        while batches > 0:
            taken = min(ahead, batches)
            batches -= taken
            for _ in range(taken):
                if teacher is not None:
                    self.fetch(teacher, TRAINING, without_grad=self.rng.random() < 0.8)
                self.fetch(run, TRAINING, without_grad=without_grad)
                self.now += _FETCHED
            if batches == 0 and ahead > 1 and self.rng.random() < 0.5:
                self.end(run, TRAINING)
                batches = -1
            self.in_eval_mode = trains_in_eval_mode  # train(), or not
            for _ in range(taken):
                self.now += _USED
                self.purposes.effect()  # a backward pass, or a step
            self.recorder.work.count()
        if batches == 0:
            self.end(run, TRAINING)

    def evaluate(self) -> None:
        """Evaluate: in a mode that shows it, or in none."""
        run, shown = self.purposes.start(), self.rng.choice(("eval", "eval", "no_grad", "neither"))
        self.in_eval_mode = shown == "eval"
        batches = self.rng.choice((2, 5, MOST_PENDING + 20))
        for _ in range(batches):
            self.fetch(run, EVALUATING, without_grad=shown == "no_grad")
            self.now += _USED
        if self.rng.random() < 0.7:
            self.end(run, EVALUATING)
            if shown != "neither" and self.rng.random() < 0.5:  # a step on data that come from no loader
                self.purposes.effect()
                assert run.purpose == EVALUATING

    def read_ahead(self) -> None:
        """Read all batches of a loader, then train on them."""
        self.in_eval_mode, run = False, self.purposes.start()
        for _ in range(self.rng.choice((3, 2 * MOST_PENDING))):
            self.fetch(run, TRAINING)
            self.now += _FETCHED
        self.end(run, TRAINING)
        self.now += _USED
        self.purposes.effect()
        self.recorder.work.count()

    def run(self) -> None:
        """Do what is drawn, and end."""
        acts: list[Callable[[], None]] = [self.train, self.evaluate, self.evaluate, self.read_ahead]
        acts += [lambda: self.train(self.purposes.start()), lambda: self.train(trains_in_eval_mode=True)]
        for act in [self.train, *self.rng.choices(acts, k=12)]:
            act()
        self.purposes.close()


@seeds(range(1000))
def test_every_wait_and_sample_is_found_where_it_belongs(seed: int) -> None:
    program = Program(random.Random(seed))
    program.run()
    words = program.record.words
    assert {phase: words[WAITED + phase] for phase in program.waited} == program.waited
    assert words[SAMPLES] == program.samples
