"""What batches are for, in drawn programs: windows fetched ahead, evaluations that end or are cut short, teachers with
a loader of their own, batches fetched without gradients or in evaluation mode, micro-batches used one by one before a
step, from the start or later, trainings on batches of a loader that nobody sees. Each wait and batch is found where it
belongs, whatever the modes are. Where nothing shows a step, the modes are all that there is.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests import needs
from tests.drawn import cases, seeds

needs.torch()

from gpugauge.hook.purposes import MOST_PENDING, Purposes, Run  # noqa: E402 - after the skip
from gpugauge.hook.record import (  # noqa: E402 - after the skip
    EVALUATING,
    TRAINING,
    Record,
)
from gpugauge.hook.recorder import Recorder  # noqa: E402 - after the skip
from gpugauge.wire.record import SAMPLES, STEPS, WAITED  # noqa: E402 - after the skip

_FETCHED, _USED = 2_000, 5_000_000  # nanoseconds between two batches: only fetched, or used


class Loader:
    """The loader of several iterators. They share its sampler, which can be a list, and its dataset."""

    def __init__(self, sampler: object = None) -> None:
        self._index_sampler, self._dataset = sampler or self, self


class Program:
    """A drawn program. `waited` and `samples` are what it knows itself."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now = rng, 10**9
        self.record = Record()
        self.recorder = Recorder(self.record)
        self.purposes = Purposes(self.recorder, lambda: True)
        self.waited = {TRAINING: 0, EVALUATING: 0}
        self.samples = 0
        self.in_eval_mode = self.without_grad = False  # the second: some batches of the training were fetched so
        self.loader = Loader(rng.choice((None, [[0, 1], [2]])))  # of the training
        self.unseen = rng.random() < 0.3  # it trains on batches of a loader that nobody sees
        self.accumulates = not self.unseen and rng.random() < 0.2  # it uses several batches before an effect

    def fetch(self, run: Run, purpose: int, *, without_grad: bool = False) -> None:
        """Take a batch of an iterator."""
        start, waited = self.now, self.rng.randrange(10_000_000)
        self.now += waited
        size = self.rng.randrange(1, 9)

        def read(_: object, work: object) -> None:
            work.samples += size  # type: ignore[attr-defined]  # a Work

        short = run.purpose == TRAINING and purpose == TRAINING and self.rng.random() < 0.7
        if short and not (self.in_eval_mode or without_grad or self.purposes.pending):  # see hot.py
            self.record.words[WAITED + TRAINING] += waited
            read(None, self.recorder.work)
        else:
            self.purposes.take(run, start, self.now, self.in_eval_mode, without_grad)
            self.purposes.book(run, waited, None, None, read)
        self.record.last_batch = self.now
        self.waited[purpose] += waited
        self.samples += size * (purpose == TRAINING)

    def end(self, run: Run, purpose: int) -> None:
        """Wait for the end of an iterator."""
        start, waited = self.now, self.rng.randrange(1_000_000)
        self.now += waited
        self.purposes.end(run, start, self.now)
        self.purposes.book(run, waited)
        self.waited[purpose] += waited

    def step(self) -> None:
        """Make a step, most often after a backward pass."""
        self.now += _USED
        for _ in range(self.rng.choice((1, 2, 2))):
            self.purposes.effect()
        self.record.words[STEPS] += 1

    def train(self, teacher: Run | None = None, *, trains_in_eval_mode: bool = False) -> None:
        """Train for an epoch, with so many batches fetched before they are used."""
        run, ahead = self.purposes.start(self.loader), 4 if self.accumulates else self.rng.choice((1, 1, 4))
        without_grad = not self.accumulates and self.rng.random() < 0.3
        self.without_grad = self.without_grad or without_grad
        batches = self.rng.randrange(3 if self.unseen else 1 + self.accumulates, 20)
        if self.unseen:
            for _ in range(batches):
                self.step()
            return
        if teacher is not None or self.accumulates:
            self.in_eval_mode = False
        while batches > 0:
            taken = min(ahead, batches)
            batches -= taken
            for _ in range(taken):
                if teacher is not None:
                    self.fetch(teacher, TRAINING, without_grad=self.rng.random() < 0.8)
                self.fetch(run, TRAINING, without_grad=without_grad)
                self.now += _USED if self.accumulates else _FETCHED
            if batches == 0 and ahead > 1 and self.rng.random() < 0.5:
                self.end(run, TRAINING)
                batches = -1
            self.in_eval_mode = trains_in_eval_mode and not self.accumulates  # train(), or not
            for _ in range(1 if self.accumulates else taken):
                self.step()
            self.recorder.work.count()
        if batches == 0:
            self.end(run, TRAINING)

    def evaluate(self) -> None:
        """Evaluate: in a mode that shows it, or in none."""
        shown = self.rng.choice(("eval", "eval", "no_grad", "neither"))
        unlike = shown != "neither" and not (shown == "no_grad" and self.without_grad)  # the training on its loader
        run = self.purposes.start(self.rng.choice((Loader(), self.loader if unlike else Loader())))
        self.in_eval_mode, self.purposes.left_in_eval_mode = shown == "eval", False
        batches = self.rng.choice((2, 5, MOST_PENDING + 20))
        for _ in range(batches):
            self.fetch(run, EVALUATING, without_grad=shown == "no_grad")
            self.now += _USED
        ended = self.rng.random() < 0.7
        if ended:
            self.end(run, EVALUATING)
        # A step on data that come from no loader, or that were fetched before an earlier step. Only its end shows such
        # an evaluation beside several batches a step.
        if self.rng.random() < 0.5 and (not self.accumulates or (ended and shown != "neither")):
            self.step()
            self.train()
            assert run.purpose == EVALUATING

    def read_ahead(self) -> None:
        """Read all batches of a loader, then train on them."""
        if self.rng.random() < 0.3:
            self.end(self.purposes.start(self.loader), TRAINING)  # it has failed, and is begun again
        self.in_eval_mode, run = False, self.purposes.start(self.loader)
        for _ in range(self.rng.choice((3, 2 * MOST_PENDING))):
            self.fetch(run, TRAINING)
            self.now += _FETCHED
        self.end(run, TRAINING)
        self.step()
        self.recorder.work.count()
        for _ in range(0 if self.accumulates else self.rng.randrange(3)):  # with evaluations that no mode shows
            run = self.purposes.start(Loader())
            for _ in range(3):
                self.fetch(run, EVALUATING)
                self.now += _USED
            self.end(run, EVALUATING)
            self.step()
            self.step()

    def change(self) -> None:
        """Use several batches before an effect from now on, also those of whole iterators."""
        self.in_eval_mode, self.accumulates = self.rng.random() < 0.5, not self.unseen
        if self.in_eval_mode:  # and stays so after an evaluation without gradients
            run = self.purposes.start(Loader())
            for _ in range(3):
                self.fetch(run, EVALUATING, without_grad=True)
                self.now += _USED
            self.end(run, EVALUATING)
        loader, whole = self.rng.choice((None, self.loader)), self.rng.random() < 0.5
        shows = self.rng.random() < 0.5  # what it has learned, after each batch
        without_grad = self.without_grad and not (loader is None or whole or shows or self.in_eval_mode)
        run = self.purposes.start(loader)
        for _ in range(self.rng.randrange(2, 5) if self.accumulates else 0):
            for _ in range(self.rng.randrange(2, 9)):
                if shows:
                    self.in_eval_mode, self.purposes.left_in_eval_mode = True, False
                self.fetch(run, TRAINING, without_grad=without_grad)
                if shows:
                    self.in_eval_mode = False
                    self.purposes.resume(self.now)
                assert loader is None or without_grad or self.purposes.phase(run) == TRAINING
                self.now += _USED
            if whole:
                self.end(run, TRAINING)
                run = self.purposes.start(loader)
            self.step()
            self.recorder.work.count()
        self.in_eval_mode = False
        self.purposes.resume(self.now)

    def run(self) -> None:
        """Do what is drawn, and end."""
        acts: list[Callable[[], None]] = [self.train, self.evaluate, self.evaluate, self.read_ahead]
        acts += [lambda: self.train(self.purposes.start()), lambda: self.train(trains_in_eval_mode=True)]
        drawn = self.rng.choices(acts, k=12)
        if self.rng.random() < 0.5:
            drawn.insert(self.rng.randrange(13), self.change)
        for act in [self.train, *drawn]:
            act()
        self.purposes.close()


class Blind(Program):
    """A program without an optimizer and backward passes: only the modes show an evaluation."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.purposes = Purposes(self.recorder, lambda: False)
        self.resumes = rng.choice(("after", "after each", "never"))  # how it calls train() after eval()
        self.shows = ("no_grad",) if self.resumes == "never" else ("no_grad", "eval", "both")

    def resume(self) -> None:
        """Call train() after eval()."""
        if self.in_eval_mode:
            self.in_eval_mode = False
            self.purposes.resume(self.now)

    def run(self) -> None:
        """Train for some epochs with evaluations in them, which end or are cut short."""
        for _ in range(self.rng.randrange(1, 4)):
            run = self.purposes.start()
            for _ in range(self.rng.randrange(2, 20)):
                self.fetch(run, TRAINING)
                if self.resumes == "after each":
                    self.resume()
                self.now += _USED
                if self.rng.random() < 0.2:
                    self.evaluate()
                self.in_eval_mode = self.in_eval_mode or self.resumes == "after each"  # it shows what it has learned
            self.end(run, TRAINING)
        self.recorder.work.count()

    def evaluate(self) -> None:
        """Evaluate in a mode that shows it."""
        run, shown = self.purposes.start(), self.rng.choice(self.shows)
        self.in_eval_mode = shown != "no_grad" or self.resumes == "never"
        for _ in range(self.rng.randrange(2, 6)):
            self.fetch(run, EVALUATING, without_grad=shown != "eval")
            self.now += _USED
        if self.rng.random() < 0.5:
            self.end(run, EVALUATING)
        if self.resumes != "never":
            self.resume()


@seeds(range(1000))
@cases("kind", (Program, Blind))
def test_every_wait_and_sample_is_found_where_it_belongs(seed: int, kind: type[Program]) -> None:
    program = kind(random.Random(seed))
    program.run()
    words = program.record.words
    assert {phase: words[WAITED + phase] for phase in program.waited} == program.waited
    assert words[SAMPLES] == program.samples
