"""Counters of steps, of one or several optimizers, and of batches: one append for each, the arithmetic once a second.

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
import threading
from collections import Counter, deque

from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.record import Record
from gpugauge.hook.work import Work
from gpugauge.wire import messages as wire
from gpugauge.wire.record import BATCHES as BATCHES_WORD
from gpugauge.wire.record import LAST_STEP, STEPS


class _Round:
    """The optimizers of a round in the order of their steps, and those that are owed a step, see above."""

    __slots__ = ("debtors", "members", "places")

    def __init__(self) -> None:
        self.members: list[int] = []  # one that no longer exists has a negative key
        self.places: dict[int, int] = {}
        self.debtors: list[int] = []


class Rounds:
    """The rounds of a training; optimizers are known by keys. `loop` has the optimizers of the present loop."""

    def __init__(self) -> None:
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
            self._add(optimizer, _Round())
            return 1
        if optimizer in self._created:
            self._begin_loop(optimizer, set(self._round.members))
            return 1
        return self._join(optimizer)

    def _add(self, optimizer: int, to: _Round) -> None:
        self._round = to
        to.places[optimizer] = len(to.members)
        to.members.append(optimizer)
        self._rounds.setdefault(optimizer, []).append(to)

    def _join(self, optimizer: int) -> int:
        self._owed[optimizer] = self._round
        self._add(optimizer, self._round)
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
        self._add(optimizer, _Round())
        if owing is None:
            if self._often(self._given.get(optimizer, set())):
                del self._given[optimizer]
            return 1
        self._begin_loop(optimizer, set(owing.members[: owing.places[optimizer]]))
        return 2

    def _begin_loop(self, optimizer: int, others: set[int]) -> None:
        self.loop = {optimizer}
        self._add(optimizer, _Round())
        self._given.pop(optimizer, None)
        if self._steps[optimizer] == 0 or not self._often(others):
            self._given[optimizer] = set(others)

    def _often(self, optimizers: set[int]) -> bool:
        """Return whether one of them has made several steps, or is gone: it had a loop of its own."""
        return any(self._steps[optimizer] > 1 or optimizer < 0 for optimizer in optimizers)


def inside_another_step() -> bool:
    """Return whether the step whose hook calls the caller is a part of another step: by super(), or of a wrapper."""
    frame = sys._getframe(3)  # noqa: SLF001 - of torch, which wraps every step and calls the hooks after it
    code, caller = frame.f_code, frame.f_back
    while caller is not None:
        if caller.f_code is code:
            return True
        caller = caller.f_back
    return False


OPTIMIZER, BATCHES, TICK, DEEPSPEED = wire.STEP_SOURCES


class Tally:
    """A sequence of events: their number, the sum of their durations, and a histogram of the durations."""

    def __init__(self) -> None:
        self.count = 0
        self.durations = 0
        self.nanoseconds = 0
        self.last: float | None = None
        self.log2 = [0] * wire.LOG2_BUCKETS

    def add(self, nanoseconds: int) -> None:
        """Add one duration. The caller counts the event itself."""
        nanoseconds = max(0, nanoseconds)
        self.durations += 1
        self.nanoseconds += nanoseconds
        self.log2[wire.log2_bucket(nanoseconds)] += 1

    def progress(self) -> wire.Progress:
        """Return the counts so far for a message."""
        return wire.Progress(self.count, self.nanoseconds / 1e9, self.last, tuple(self.log2))


class Recorder:
    """`ends` holds the ends of steps, and `waits` the nanoseconds that the training thread waited for each batch, until
    drain(). The end of its last wait is `last_batch` of the record. Appending to a deque is atomic, so the listeners
    need no lock. They also store the counts in the shared record, which the daemon reads at any time. The first event
    decides the `source` of the step count. Counted steps stay counted when the source changes.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.ends: deque[int] = deque()
        self.waits: deque[int] = deque()
        self.work = Work(record)
        self.source: str | None = None
        self.clear()

    def clear(self) -> None:
        """Start from zero, with the source kept: in a forked child."""
        for part in (self.ends, self.waits, self.work):
            part.clear()
        self.rounds, self.step_tally, self.batch_tally = Rounds(), Tally(), Tally()
        self._step_end: int | None = None
        self._steps_before_ticks: int | None = None
        self._rounds_of_tick = self._counted_ticks = 0  # the second: ticks to come for steps that are counted
        self.gone: deque[int] = deque()  # optimizers that no longer exist: a garbage collection adds them at any time
        self._lock = threading.RLock()  # several threads can step; a forked child has a new one

    def create_optimizer(self, optimizer: int) -> None:
        """Record the creation of an optimizer."""
        with self._lock:
            self._rounds_of_present().create(optimizer)

    def _rounds_of_present(self) -> Rounds:
        """Return the rounds without the optimizers that no longer exist."""
        while self.gone:
            self.rounds.forget(self.gone.popleft())
        return self.rounds

    def optimizer_step(self, optimizer: int, now: int) -> None:
        """Count the step of an optimizer, if steps are counted by optimizers."""
        with self._lock:
            self.source = self.source or OPTIMIZER
            steps = self._rounds_of_present().step(optimizer)
            if self.source == OPTIMIZER:
                self.add_steps(steps, now)
            else:
                self._rounds_of_tick += steps
            self.work.count()  # also if the step is not counted: it has used the batches

    def tick(self, now: int) -> None:
        """Count a step that the program reports. The first one is the last of the steps that another source has
        counted; the second one shows how many of them were one step.
        """
        with self._lock:
            if self.source not in (TICK, None):
                self._steps_before_ticks, self._rounds_of_tick = self.record.words[STEPS], 0
                self.source = TICK
                return
            self.source = TICK
            if self._steps_before_ticks is not None:
                self._counted_ticks = max(0, min(self._steps_before_ticks, self._rounds_of_tick) - 1)
                self._steps_before_ticks = None
            if self._counted_ticks:
                self._counted_ticks -= 1
            else:
                self.add_steps(1, now)

    def add_steps(self, steps: int, now: int) -> None:
        """Count steps that end now. Of several, only the last one has a duration."""
        if steps > 0:
            self.step_tally.count += steps - 1
            self.ends.append(now)
            words = self.record.words
            words[STEPS] += steps
            words[LAST_STEP] = now
            self.work.count()

    def add_batch(self, waited: int, end: int) -> None:
        """Count a batch of the training thread. Its wait counts when its purpose is known."""
        self.waits.append(waited)
        self.record.last_batch = end
        self.record.words[BATCHES_WORD] += 1

    def drain(self) -> None:
        """Count the events since the last call. Only one thread at a time may call it."""
        monotonic, unix = CLOCKS
        offset, steps, batches = unix() - monotonic() / 1e9, self.step_tally, self.batch_tally
        # popleft instead of a copy: another thread can append during the loop.
        for _ in range(len(self.ends)):
            end = self.ends.popleft()
            if self._step_end is not None:
                steps.add(end - self._step_end)
            steps.count += 1
            steps.last = offset + end / 1e9
            self._step_end = end
        for _ in range(len(self.waits)):
            batches.add(self.waits.popleft())
            batches.count += 1
            batches.last = offset + self.record.last_batch / 1e9
        # A thread that steps while another one stores a count can overwrite it.
        words = self.record.words
        words[STEPS] = max(words[STEPS], steps.count)
