"""A mutant, what happened to it, and how its tests run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qa.mutants.processes import CRASHED, TIMED_OUT
from qa.mutants.sites import Site

ROOT = Path(__file__).parents[2]
_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "tmp_path_retention_policy=none")
THE_IMPORT, TIME_LIMIT = "the import", "time limit"  # in the place of a test that kills
_MARKS = "not e2e and not deploy and not everything"


@dataclass(frozen=True)
class Mutant:
    """A mutant of a module, which is a path below the root of the repository."""

    module: str
    site: Site
    source: str = ""  # of the module: a file that is edited meanwhile must not count as a killed mutant

    @property
    def name(self) -> str:
        """The name in results and in the list of survivors."""
        return f"{self.module.removeprefix('src/gpugauge/')} {self.site.name}"

    @property
    def file(self) -> str:
        """The absolute path of the module."""
        return str(ROOT / self.module)

    @property
    def import_name(self) -> str:
        """The name by which the module is imported."""
        return ".".join(Path(self.module).with_suffix("").parts[1:]).removesuffix(".__init__")


@dataclass
class Outcome:
    """What happened to a mutant: `killed_by` is a test, `time limit`, `crash`, or empty if it survived."""

    mutant: Mutant
    killed_by: str = ""
    tests: int = 0


class Failures:
    """Records whether a test failed."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def pytest_options(tests: list[str]) -> list[str]:
    """Return the arguments of pytest for these tests."""
    return [*_OPTIONS, "-m", _MARKS, *tests]


class DrawnAlike:
    """The plugin that draws the same examples for each mutant, and does not shrink them: one failure is enough."""

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings  # noqa: PLC0415 # pytest wants to import it itself

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")


def outcome(mutant: Mutant, answer: dict[str, Any]) -> Outcome:
    """Return the outcome from the answer of a child."""
    if answer == TIMED_OUT:
        return Outcome(mutant, TIME_LIMIT)
    if answer == CRASHED:
        return Outcome(mutant, "crash")
    return Outcome(mutant, answer["killed_by"], answer["tests"])
