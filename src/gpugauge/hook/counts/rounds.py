"""Training steps from the steps of several optimizers.

Optimizers of one training loop step in rounds: a generator and a discriminator, or one optimizer per parameter. A round
is one training step, and a round ends when one of its optimizers steps again. Optimizers that are used one after
another have rounds of their own. Both look alike at the first step after that of another optimizer, so what follows
decides about it:

- an optimizer that was created after the last step of the others begins a round;
- any other optimizer joins the round, and is owed a step until one of the earlier optimizers of the round steps again;
  if the optimizer itself steps again before, it gets the step that it is owed;
- if the earlier optimizers had made one step at most, they can share a loop with it all the same: if all of them step
  again, and the last of them once, the next step is not counted.
"""

from __future__ import annotations

import sys
from collections import Counter


class _Round:
    """The optimizers of a round in the order of their steps. `debtors` are those that are owed a step until an earlier
    one of the round steps again.
    """

    __slots__ = ("debtors", "members", "places")

    def __init__(self) -> None:
        self.members: list[int] = []  # one that no longer exists has a negative key
        self.places: dict[int, int] = {}
        self.debtors: list[int] = []

    def add(self, optimizer: int) -> None:
        self.places[optimizer] = len(self.members)
        self.members.append(optimizer)


class Rounds:
    """The rounds of a training; optimizers are known by keys. `loop` has the optimizers of the present loop."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.loop: set[int] = set()
        self._round = _Round()
        self._rounds: dict[int, list[_Round]] = {}  # by optimizer: those in which it has stepped last
        self._created: set[int] = set()  # since the last step
        self._steps: Counter[int] = Counter()  # by optimizer
        self._returned: tuple[int, int] | None = None  # the last optimizer to step again, and the steps it can cost
        self._owed: dict[int, _Round] = {}  # by optimizer: the round in which it is owed a step
        self._given: dict[int, set[int]] = {}  # by optimizer: of those others, the ones without a step since
        self._surplus = 0  # counted steps that have turned out to be none
        self._gone = 0  # number of optimizers that no longer exist; their places have negative keys

    def create(self, optimizer: int) -> None:
        """Add an optimizer. Its key may be that of one that no longer exists."""
        self.forget(optimizer)
        self._created.add(optimizer)

    def forget(self, optimizer: int) -> None:
        """Remove an optimizer that no longer exists. It keeps its place in rounds, which it never steps in again."""
        for keys in (self.loop, self._created):
            keys.discard(optimizer)
        self._steps.pop(optimizer, None)
        self._owed.pop(optimizer, None)
        self._given.pop(optimizer, None)
        self._gone += 1
        for keys in self._given.values():
            if optimizer in keys:
                keys.remove(optimizer)
                keys.add(-self._gone)
        for known in self._rounds.pop(optimizer, ()):
            known.members[known.places.pop(optimizer)] = -self._gone

    def step(self, optimizer: int) -> int:
        """Return the number of training steps to count at a step of this optimizer."""
        if self._returned is not None:
            returned, cost = self._returned
            self._surplus += cost if returned != optimizer else 0  # a second step shows that it is used by itself
            self._returned = None
        first = not self._steps[optimizer]
        counted = self._first_step(optimizer) if first else self._later_step(optimizer)
        self._steps[optimizer] += 1
        self._created.clear()
        self.loop.add(optimizer)
        spent = min(self._surplus, counted)
        self._surplus -= spent
        return counted - spent

    def _first_step(self, optimizer: int) -> int:
        if not self._round.members:
            self._begin_round(optimizer)
            return 1
        if optimizer in self._created:
            self._begin_loop(optimizer, set(self._round.members))
            return 1
        return self._join(optimizer)

    def _begin_round(self, optimizer: int) -> None:
        self._round = _Round()
        self._add(optimizer)

    def _add(self, optimizer: int) -> None:
        self._round.add(optimizer)
        self._rounds.setdefault(optimizer, []).append(self._round)

    def _join(self, optimizer: int) -> int:
        self._owed[optimizer] = self._round
        self._add(optimizer)
        self._round.debtors.append(optimizer)
        return 0

    def _later_step(self, optimizer: int) -> int:
        """Count a new round, and decide about the steps that its optimizer has to do with."""
        for known in self._rounds.pop(optimizer, ()):
            while known.debtors and known.places.get(known.debtors[-1], -1) > known.places[optimizer]:
                other = known.debtors.pop()
                if self._owed.get(other) is known:
                    del self._owed[other]
        for other, waiting in tuple(self._given.items()):
            waiting.discard(optimizer)
            if not waiting:
                del self._given[other]
                self._returned = (optimizer, (self._returned[1] if self._returned else 0) + 1)
        owing = self._owed.pop(optimizer, None)
        if optimizer not in self._round.places:
            return self._join(optimizer)
        self._begin_round(optimizer)
        if owing is None:
            if self._often(self._given.get(optimizer, set())):
                del self._given[optimizer]
            return 1
        self._begin_loop(optimizer, set(owing.members[: owing.places[optimizer]]))
        return 2

    def _begin_loop(self, optimizer: int, others: set[int]) -> None:
        self.loop = {optimizer}
        self._begin_round(optimizer)
        self._given.pop(optimizer, None)
        if self._steps[optimizer] == 0 or not self._often(others):
            self._given[optimizer] = set(others)

    def _often(self, optimizers: set[int]) -> bool:
        """Return whether one of them has made several steps, or is gone: it had a loop of its own."""
        return any(self._steps[optimizer] > 1 or optimizer < 0 for optimizer in optimizers)


def inside_another_step() -> bool:
    """Return whether the step whose hook calls the caller is a part of another optimizer's step: an optimizer that
    calls the step of its base class, or of an optimizer that it wraps.
    """
    frame = sys._getframe(3)  # noqa: SLF001 - of torch, which wraps every step and calls the hooks after it
    code, caller = frame.f_code, frame.f_back
    while caller is not None:
        if caller.f_code is code:
            return True
        caller = caller.f_back
    return False
