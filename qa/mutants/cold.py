"""A mutant of code that runs when a module is imported: everything is imported again for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from qa.mutants.codes import compiled
from qa.mutants.mutant import THE_IMPORT, DrawnAlike, Failures, pytest_options
from qa.mutants.settling import Trial
from qa.mutants.started import give


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
    failures = Failures()
    options = pytest_options([trial.only] if trial.only else tests)
    code = pytest.main(options, plugins=[failures, _Chosen(trial, order), DrawnAlike()])
    killed_by = (
        "" if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else failures.failed or THE_IMPORT
    )
    return {"killed_by": killed_by, "tests": 0}
