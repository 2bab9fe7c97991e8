"""Kills that are repeated, in real children."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from qa.mutants.mutant import THE_IMPORT, Mutant
from qa.mutants.processes import CRASHED, TIMED_OUT, Task
from qa.mutants.settling import Trial, settled
from qa.mutants.sites import Site

MUTANT = Mutant("src/gpugauge/a.py", Site("a < b -> a <= b", 1, 1, lambda: None))


def outcome(folder: Path, script: dict[str, str]) -> tuple[Any, int]:
    """Return the answer that is settled, and the number of trials. `script` has, by test, a letter for each of its runs
    with the mutant (the last one lasts): p for passed, f for failed, c for a crash, h for a run that hangs.
    """

    def runs(test: str) -> int:
        return len((folder / test).read_text()) if (folder / test).exists() else 0

    def run(test: str) -> bool:
        """Run a test; return whether it fails."""
        ending = script[test][min(runs(test), len(script[test]) - 1)]
        (folder / test).write_text("x" * (runs(test) + 1))
        if ending == "c":
            os.kill(os.getpid(), 9)
        if ending == "h":
            time.sleep(60)
        return ending == "f"

    def task(trial: Trial) -> Task:
        tests = [test for test in script if trial.runs(test)]
        (folder / "trials").write_text("x" * (runs("trials") + 1))
        return Task(trial, lambda: {"killed_by": next(filter(run, tests), "")}, 0.3)

    ((mutant, answer),) = settled([MUTANT], task, 2)
    assert mutant is MUTANT
    return answer, runs("trials")


@pytest.mark.parametrize(
    ("script", "answer", "trials"),
    [
        ({"a": "p", "b": "p"}, {"killed_by": ""}, 1),
        ({"a": "p", "b": "f"}, {"killed_by": "b"}, 2),
        ({"a": "fp", "b": "p"}, {"killed_by": ""}, 3),  # a test that fails by chance
        ({"a": "fp", "b": "f"}, {"killed_by": "b"}, 4),
        ({"a": "fp", "b": "fp", "c": "p"}, {"killed_by": ""}, 5),
        ({"a[1]": "fp", "a[2]": "f", "b": "f"}, {"killed_by": "b"}, 4),  # it is left out with all its parameters
        ({**dict.fromkeys("abcd", "fp"), "e": "f"}, {"killed_by": ""}, 8),  # too many fail by chance
        ({"a": "fh"}, {"killed_by": "a"}, 2),  # a test that does not pass
        ({"a": "h"}, TIMED_OUT, 2),
        ({"a": "hp", "b": "p"}, {"killed_by": ""}, 2),  # a busy machine
        ({"a": "hp", "b": "f"}, {"killed_by": "b"}, 3),
        ({"a": "c"}, CRASHED, 2),
        ({"a": "cp"}, {"killed_by": ""}, 2),
        ({THE_IMPORT: "f"}, {"killed_by": THE_IMPORT}, 1),  # nothing is left to chance
    ],
)
def test_a_kill_counts_if_it_happens_twice(
    script: dict[str, str], answer: dict[str, Any], trials: int, tmp_path: Path
) -> None:
    assert outcome(tmp_path, script) == (answer, trials)
