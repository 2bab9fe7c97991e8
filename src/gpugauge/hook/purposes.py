"""What the batches of each iterator are for, decided by what follows them: a backward pass or a step after a batch
shows that its iterator is for the training. Until then the batches, their waits and their samples are pending, and the
phase that is shown is a guess.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from gpugauge.hook.record import EVALUATING, STARTING, TRAINING
from gpugauge.hook.recorder import Recorder
from gpugauge.hook.work import Reader, Work
from gpugauge.hook.wrappers import attempt
from gpugauge.wire.record import STEPS, WAITED

# So many batches without an effect decide. Of a program in which nothing can show an effect, the second one does.
MOST_PENDING, _MOST_BLIND = 64, 2
_MOST_RUNS = 16
_MOST_ELSEWHERE = 64
_MOST_STEPS, _MOST_EFFECTS = 2, 4  # steps, or effects without any, on one batch: then others come from elsewhere
# A batch that is followed by another one within this time was only fetched: programs fetch several before a step.
_USED_NS = 2_000_000


class Run:
    """The batches of one iterator. `purpose` is None while they are pending, in `work` and `waited`. `in_eval_mode` and
    `without_grad` are how the last batch was fetched: the model in evaluation mode, gradients off. `in_a_row` is
    whether two of them came without one of another iterator in between. `trained_so` is whether batches that were
    fetched without gradients have turned out to be for the training. `loader` refers to what all iterators of its
    DataLoader share. `along` is whether the last batch was not used before one of another iterator was fetched. Of a
    thread that does not train, `last` is the time of the last batch.
    """

    def __init__(self, work: Work, loader: weakref.ref[Any] | None = None) -> None:
        self.purpose: int | None = None
        self.loader = loader
        self.read: Reader | None = None  # of the sizes of its batches
        self.inner: Callable[[], Any] = lambda: None  # the iterator of DataLoader from which its batches come
        self.count = self.waited = self.used = self.last = 0
        self.effects = 0  # that the program had made when the purpose was decided
        self.steps = self.without_step = 0  # that the program had made before the last batch; batches used without one
        self.in_eval_mode = self.without_grad = self.in_a_row = self.ended = self.trained_so = self.along = False
        self.work = work

    def take_elsewhere(self, start: int, now: int, brought: bool) -> None:
        """Note a wait of a thread that does not train, and its batch unless it was one for an iterator, or its end."""
        self.used = 0 if self.ended else self.used + (0 < self.last <= start - _USED_NS)
        self.ended = not brought
        self.waited += now - start
        if brought:
            self.count, self.last = self.count + 1, now

    def is_like(self, other: Run) -> bool:
        """Whether it is of the same DataLoader as another one, and fetched its last batch in the same mode."""
        modes = [(run.in_eval_mode, run.without_grad) for run in (self, other)]
        return self.loader is not None and self.loader == other.loader and modes[0] == modes[1]

    @property
    def in_use(self) -> bool:
        """Whether the program has used most batches before it fetched the next one."""
        return 2 * self.used >= self.count > 0


class Purposes:
    """The iterators whose batches are pending, and the one that was read last. `left_in_eval_mode` is whether batches
    without gradients have come since eval(): then it shows no evaluation of later ones. For the training thread.
    """

    def __init__(self, recorder: Recorder, has_optimizer: Callable[[], bool]) -> None:
        self._recorder, self._has_optimizer = recorder, has_optimizer
        self._trains_without_grad = False  # the last batches that were fetched without gradients were for the training
        self._accumulates = False  # the program uses several batches for an effect
        self.left_in_eval_mode = False
        self._effects = 0
        # Loaders of batches that had an effect: whether some had no gradients. None for those that only evaluate.
        self._loaders: dict[Any, bool | None] = {}
        self._pending: list[Run] = []
        self.clear()

    def clear(self) -> None:
        """Start from zero, in a forked child: what is pending is its parent's."""
        self._drop(tuple(self._pending))
        self._elsewhere: dict[tuple[int, int], Run] = {}  # by thread and phase
        self._current: Run | None = None
        self._doubtful: Run | None = None  # an effect has followed its batches, which were used as in an evaluation
        self._steps = self._doubted = 0  # that were made before, and effects
        self._arrived = 0  # when the last batch came, of any iterator
        self._unserved = 0  # nanoseconds of waits that were for what the next one is for

    def _drop(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._pending.remove(run)
            run.waited = 0
            run.work.clear()

    @property
    def pending(self) -> bool:
        """Whether the next effect decides something."""
        current = self._current
        return bool(self._pending) or (current is not None and current.purpose == EVALUATING)

    @property
    def fetches_ahead(self) -> bool:
        """Whether several steps can come between two batches: they are fetched ahead, or none is seen."""
        return self._current is None or self._current.used < self._current.count - 1

    @property
    def blind(self) -> bool:
        """Whether nothing can show an effect, as far as is known."""
        return not self._effects and not self._has_optimizer()

    def start(self, iterator: Any = None) -> Run:
        """Return the run of a new iterator."""
        parts = (getattr(iterator, name, None) for name in ("_index_sampler", "_dataset"))
        return Run(Work(self._recorder.record), next(filter(None, map(_reference, parts)), None))

    def elsewhere(self, thread: int, phase: int) -> Run:
        """Return what a thread has taken that does not train. It counts if that thread turns out to be the one."""
        if (thread, phase) not in self._elsewhere and len(self._elsewhere) >= _MOST_ELSEWHERE:
            del self._elsewhere[next(iter(self._elsewhere))]
        return self._elsewhere.setdefault((thread, phase), self.start())

    def adopt(self, thread: int) -> None:
        """Count what a thread has taken that has begun to train, in place of another one."""
        if (thread, TRAINING) in self._elsewhere and not self._effects:  # nothing trained on what was read to its end
            self._drop([run for run in self._pending if run.ended])
        self.close()
        runs = {phase: self._elsewhere.pop((thread, phase), None) for phase in (TRAINING, EVALUATING)}
        latest = max((run.last for run in runs.values() if run), default=0)
        for phase, run in runs.items():
            if run is None:
                continue
            for _ in range(run.count):
                self._recorder.add_batch(run.waited // run.count, run.last)
            purpose = TRAINING if 0 < latest == run.last else phase  # it trains on what it has taken last
            self._trains_without_grad = self._trains_without_grad or purpose != phase
            self._accumulates = self._accumulates or (purpose == TRAINING and run.used > 0)
            self.book(None, run.waited, purpose)
            if purpose == TRAINING:
                self._recorder.work.add(run.work)

    def counted(self, word: int) -> int | None:
        """Return the samples or tokens of the training; None while a thread takes batches for another one."""
        work, others = self._recorder.work, tuple(self._elsewhere.items())
        unknown = word not in work.reported and any(phase == TRAINING and run.count for (_, phase), run in others)
        return None if unknown else work.counted(word)

    def take(self, run: Run, start: int, now: int, in_eval_mode: bool, without_grad: bool) -> None:
        """Note a batch for which the program has waited from `start` to `now`."""
        self._fetch(run, start, now, in_eval_mode or (without_grad and not run.trained_so))
        doubtful = self._doubtful
        if doubtful is not None and doubtful is not run and self._trains_elsewhere(run.steps):
            self._doubtful = None
            self._decide(doubtful, EVALUATING)
        run.count += 1
        if without_grad:
            self.left_in_eval_mode = in_eval_mode
        else:
            in_eval_mode = in_eval_mode and not self.left_in_eval_mode
            if self.blind:  # then only a mode from the start shows an evaluation
                in_eval_mode = in_eval_mode and (run.in_eval_mode or run.count == 1)
        run.in_a_row = run.in_a_row or self._current is run
        run.in_eval_mode, run.without_grad = in_eval_mode, without_grad
        self._current = run
        unsure = in_eval_mode or (without_grad and not run.trained_so)
        if (run.purpose == TRAINING and unsure) or (run.purpose == EVALUATING and run.effects != self._effects):
            run.purpose, run.count, run.used, run.in_a_row = None, 1, 0, False
        if run.purpose is None and run not in self._pending:
            if len(self._pending) >= _MOST_RUNS:
                first = self._pending[0]
                sure = not self.blind or first.in_eval_mode or first.without_grad
                self._decide(first, EVALUATING if sure else TRAINING)
            self._pending.append(run)
        if run.purpose is None and run.count >= (_MOST_BLIND if self.blind else MOST_PENDING):
            self._decide_by_use(run)

    def resume(self, now: int) -> None:
        """Note that a model trains after an evaluation: on the last batch, if it has not been used yet."""
        run, self.left_in_eval_mode = self._current, False
        if run is None or run.purpose is not None:
            return
        if run.count == 1 and self.blind:
            self._decide(run, TRAINING)
        elif now - self._arrived < _USED_NS:
            run.in_eval_mode = False

    def book(
        self, run: Run | None, waited: int, named: int | None = None, batch: Any = None, read: Reader | None = None
    ) -> None:
        """Book a wait and its batch: on the phase that the program names, on a run, or with the next wait."""
        waited, self._unserved = max(0, waited) + self._unserved, 0
        purpose = run.purpose if named is None and run is not None else named
        if purpose is not None:
            self._recorder.record.words[WAITED + purpose] += waited
        elif run is None or not run.count:  # for an iterator, or one without a batch
            self._unserved = waited
        else:
            run.waited += waited
        if run is not None and read is not None and named is None and purpose != EVALUATING:
            read(batch, self._recorder.work if purpose == TRAINING else run.work)

    def end(self, run: Run, start: int, now: int) -> None:
        """Note the end of an iterator, for which the program has waited from `start` to `now`."""
        self._fetch(run, start, now, unsure=False)
        run.ended = True
        if run.purpose is None and run.count:
            self._decide_by_use(run)
        if run.purpose == EVALUATING:
            self._current = None  # no later effect is one of its batches

    def _fetch(self, run: Run, start: int, now: int, unsure: bool) -> None:
        """Note whether the program has used the batch before, and in a training whether without a step."""
        record = self._recorder.record
        arrived = max(self._arrived, record.last_batch)  # most batches of the training take the short way
        at_once, steps = start - arrived < _USED_NS, record.words[STEPS]
        used, before, run.along = bool(run.count) and not at_once, self._current, False
        if before is not None and before is not run:
            before.along = at_once
        run.used += used
        run.without_step += used and run.purpose == TRAINING and 0 < steps == run.steps and not unsure
        self._accumulates = self._accumulates or run.without_step > 1  # it has begun to use several for a step
        self._arrived, run.steps = now, steps

    def phase(self, run: Run) -> int:
        """Return the phase to show after a batch."""
        if run.purpose is not None:
            return run.purpose
        fetched_so = run.without_grad and not (self._trains_without_grad or self._loaders.get(run.loader))
        if fetched_so and not (run.in_eval_mode or self._effects or self.blind):
            return STARTING  # the first effect shows whether it is a training
        evaluates = run.loader in self._loaders and self._loaders[run.loader] is None
        return EVALUATING if evaluates or run.in_eval_mode or fetched_so or self._is_unlike_training(run) else TRAINING

    def effect(self) -> None:
        """Decide what is pending: the program has made a backward pass or a step."""
        current, steps = self._current, self._recorder.record.words[STEPS]
        unlike = current is not None and self._is_unlike_training(current)
        self._effects += 1
        doubtful = self._doubtful
        if current is not None or self._trains_elsewhere(steps):
            self._doubtful = None
        if current is not None and unlike and (current.in_eval_mode or current.without_grad):
            self._decide(current, EVALUATING)
            self._current, current.effects = None, -1  # the next effect says otherwise
        elif current is not None and unlike and doubtful is None:
            self._doubtful, self._current, self._steps, self._doubted = current, None, steps, self._effects
            current.count = current.used = 1
        elif current is not None and current.purpose != TRAINING:
            self._accumulates = self._accumulates or (current.in_a_row and current.in_use)
            self._trains_without_grad = self._trains_without_grad or current.without_grad
            for run in (current, doubtful) if unlike and doubtful is not None else (current,):
                self._decide(run, TRAINING)
        for run in tuple(self._pending):
            if run is self._doubtful:
                continue
            # Several loaders can be read for one step. An evaluation that the program has cut short takes some batches.
            several = run.in_a_row or (run.in_eval_mode and run.count == 1 and not run.along)
            unsure = run.in_eval_mode or run.without_grad
            # A loader that has failed is begun again.
            evaluated = (run.ended and (unsure or self._loaders.get(run.loader) is None)) or (
                several and (unsure or run.in_use)
            )
            # So is a loop that was left early, if it uses several batches for an effect.
            trained = current is not None and current.purpose == TRAINING and run.is_like(current)
            if trained and (self._effects == 1 or self._accumulates):
                evaluated, self._accumulates = False, self._accumulates or run.in_use
            self._decide(run, EVALUATING if evaluated else TRAINING)

    def _trains_elsewhere(self, steps: int) -> bool:
        """Return whether more steps, or effects without any, have followed the doubtful batches than one makes."""
        return self._effects - self._doubted >= _MOST_EFFECTS if steps == 0 else steps - self._steps >= _MOST_STEPS

    def close(self) -> None:
        """Decide what is pending by its use: the program ends, or another thread trains."""
        for run in tuple(self._pending):
            # The rest is for an effect to come.
            rest = self._accumulates and (run.loader is None or self._loaders.get(run.loader) is not None)
            unlike = run.in_use and not self.blind and not rest
            self._decide(run, EVALUATING if run.in_eval_mode or run.without_grad or unlike else TRAINING)

    def _decide_by_use(self, run: Run) -> None:
        """Decide without an effect, where the mode says what the use says."""
        if run.in_eval_mode or run.without_grad:
            if run.in_use:
                self._decide(run, EVALUATING)
        elif self.blind:
            if run.count >= _MOST_BLIND:
                self._decide(run, TRAINING)
        elif self._is_unlike_training(run) and not run.ended:
            self._decide(run, EVALUATING)

    def _is_unlike_training(self, run: Run) -> bool:
        """Return whether several batches were used, each without the effect that others have had in this program. For
        the loader of the training only a mode shows that: a step can use all of its batches.
        """
        used = run.in_a_row and run.in_use and self._effects > 0 and not self._accumulates and run.effects >= 0
        trained_so = self._loaders.get(run.loader)
        return used and (trained_so is None or run.in_eval_mode or (run.without_grad and not trained_so))

    def _decide(self, run: Run, purpose: int) -> None:
        if run in self._pending:
            self._pending.remove(run)
        if purpose == EVALUATING and run.without_grad:
            self._trains_without_grad = self._trains_without_grad and run.in_eval_mode
        run.effects = self._effects if purpose == EVALUATING else -1
        run.purpose, run.trained_so = purpose, purpose == TRAINING and run.without_grad
        self._recorder.record.words[WAITED + purpose] += run.waited
        if run.loader is not None:
            known = self._loaders.get(run.loader)
            self._loaders[run.loader] = (run.without_grad or bool(known)) if purpose == TRAINING else known
        if len(self._loaders) > _MOST_RUNS:
            del self._loaders[next(iter(self._loaders))]
        if purpose == TRAINING:
            self._recorder.work.take(run.work)
        run.waited = 0
        run.work.clear()


def _reference(part: Any) -> weakref.ref[Any] | None:
    """Return a weak reference that has a hash: lists have neither, and what the program compares itself has no hash."""
    found = None if part is None else attempt(None, weakref.ref, part)
    return None if attempt(None, hash, found) is None else found
