"""A mutant of code that runs when a module is imported: everything is imported again for each."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from qa.mutants.codes import compiled
from qa.mutants.mutant import THE_IMPORT, DrawnAlike, Failures, Mutant, pytest_options
from qa.mutants.settling import Trial


class _Loader(importlib.abc.SourceLoader):
    """Loads one module with a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def get_filename(self, fullname: str) -> str:
        return self._mutant.file

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def get_code(self, fullname: str) -> CodeType:
        return compiled(self._mutant.source, self._mutant.file, self._mutant.site.name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.import_name:
            return None
        package = [str(Path(self._mutant.file).parent)] if self._mutant.file.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, self._mutant.file, loader=_Loader(self._mutant), submodule_search_locations=package
        )


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
    sys.meta_path.insert(0, _Finder(mutant))
    failures = Failures()
    options = pytest_options([trial.only] if trial.only else tests)
    code = pytest.main(options, plugins=[failures, _Chosen(trial, order), DrawnAlike()])
    killed_by = (
        "" if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else failures.failed or THE_IMPORT
    )
    return {"killed_by": killed_by, "tests": 0}
