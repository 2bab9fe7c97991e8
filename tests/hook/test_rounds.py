"""Training steps of several optimizers: patterns, and drawn programs whose loops count their own iterations."""

import random
from collections.abc import Iterator, Sequence

import pytest

from gpugauge.hook.counts.rounds import Rounds


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
