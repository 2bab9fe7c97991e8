"""A kill counts only if it happens twice: a test that fails by chance, or on a busy machine, must not kill a mutant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.mutants.mutant import THE_IMPORT, Mutant
from tests.mutants.processes import CRASHED, TIMED_OUT, Task, forked


@dataclass(frozen=True)
class Trial:
    """A run with a mutant: of `only` one test, or of all that reach it but those `without`. It is to confirm the answer
    `before`, None for a first run.
    """

    mutant: Mutant
    only: str = ""
    without: tuple[str, ...] = ()
    before: Any = None


def _next(trial: Trial, answer: Any) -> Trial | None:
    """Return the trial that the answer of one calls for, None if the mutant is settled."""
    if answer in (TIMED_OUT, CRASHED):
        return None if trial.only or trial.before == answer else replace(trial, before=answer)
    killed_by = answer.get("killed_by", "")
    if trial.only:
        return None if killed_by else Trial(trial.mutant, without=(*trial.without, trial.only))
    if killed_by in ("", THE_IMPORT):
        return None
    return replace(trial, only=killed_by, before=answer)


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
                yield trial.mutant, trial.before if trial.only else answer
        waiting = following
