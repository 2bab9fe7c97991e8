"""A mutant of code that runs when a module is imported: everything is imported again for each."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qa.mutants.codes import compiled, parsed
from qa.mutants.mutant import THE_IMPORT, DrawnAlike, Failures, pytest_options
from qa.mutants.settling import Trial
from qa.mutants.started import give

# Given to another Python as text.
_READ = ("doctor/probe.py",)


class _Chosen:
    """The plugin that runs the tests of a trial in a given order."""

    def __init__(self, trial: Trial, order: Sequence[str]) -> None:
        self._trial = trial
        self._rank = {nodeid: rank for rank, nodeid in enumerate(order)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._trial.runs(item.nodeid)]
        items.sort(key=lambda item: self._rank.get(item.nodeid, len(self._rank)))


def try_cold(trial: Trial, tests: list[str], order: Sequence[str]) -> dict[str, Any]:
    """Return the test that fails with the mutant. To be called in a child that has not imported the module."""
    mutant = trial.mutant
    assert mutant.import_name not in sys.modules
    give({mutant.file: compiled(mutant.source, mutant.file, mutant.site.name)})
    if mutant.file.endswith(_READ):
        text, read = ast.unparse(parsed(mutant.source, mutant.file, mutant.site.name)), Path.read_text

        def mutated(path: Path, **options: Any) -> str:
            return text if str(path) == mutant.file else read(path, **options)

        pytest.MonkeyPatch().setattr(Path, "read_text", mutated)
    failures = Failures()
    options = pytest_options([trial.only] if trial.only else tests)
    code = pytest.main(options, plugins=[failures, _Chosen(trial, order), DrawnAlike()])
    killed_by = (
        "" if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else failures.failed or THE_IMPORT
    )
    return {"killed_by": killed_by, "tests": 0}
