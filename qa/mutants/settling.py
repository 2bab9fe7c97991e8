"""A kill counts only if it happens twice: a test that fails by chance, or on a busy machine, must not kill a mutant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from qa.mutants.mutant import THE_IMPORT, Mutant
from qa.mutants.processes import CRASHED, TIMED_OUT, Task, forked

# A mutant survives if so many tests fail with it once and then pass with it alone: after each, all tests run again.
_MOST_BY_CHANCE = 4


@dataclass(frozen=True)
class Trial:
    """A run with a mutant: of `only` one test, or of all that reach it but those `without`, which are left out with all
    their parameters. It is to confirm the answer `before`, None for a first run. With some left out, each test of the
    rest runs in a process of its own, if the modules are imported already.
    """

    mutant: Mutant
    only: str = ""
    without: tuple[str, ...] = ()
    before: Any = None

    def runs(self, test: str) -> bool:
        """Return whether a test, which reaches the mutant, is run."""
        return test == self.only if self.only else test.partition("[")[0] not in self.without


def _passed(answer: Any) -> bool:
    return answer not in (TIMED_OUT, CRASHED) and not answer.get("killed_by")


def _next(trial: Trial, answer: Any) -> Trial | None:
    """Return the trial that the answer of one calls for, None if the mutant is settled."""
    if answer in (TIMED_OUT, CRASHED):
        return None if trial.only or trial.before == answer else replace(trial, before=answer)
    if trial.only:
        if not _passed(answer) or len(trial.without) == _MOST_BY_CHANCE - 1:
            return None
        return Trial(trial.mutant, without=(*trial.without, trial.only.partition("[")[0]))
    if _passed(answer) or answer["killed_by"] == THE_IMPORT:
        return None
    return replace(trial, only=answer["killed_by"], before=answer)


def settled(mutants: Iterable[Mutant], task: Callable[[Trial], Task], jobs: int) -> Iterator[tuple[Mutant, Any]]:
    """Yield each mutant with its answer. The key of a task is its trial. A test that fails once, and then passes with
    the same mutant, is left out; a run that crashes, or exceeds its time, is repeated.
    """
    waiting = [Trial(mutant) for mutant in mutants]
    while waiting:
        following = []
        for trial, answer in forked(map(task, waiting), jobs):
            again = _next(trial, answer)
            if again is not None:
                following.append(again)
            else:
                yield trial.mutant, trial.before if trial.only and not _passed(answer) else answer
        waiting = following
