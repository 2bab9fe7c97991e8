"""Deletes names and rows of lists and tables anywhere in src, drawn by a seed: `python -m qa.mutants.deletions`.

Each deletion must be noticed by a test of `make test`. First run the tests beside the module and those that name it,
then, with --all, the rest. Exit status 1 if one goes unnoticed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from qa.mutants.__main__ import _PRELOADED, sample
from qa.mutants.cold import try_cold
from qa.mutants.mutant import ROOT, Mutant, Outcome, outcome
from qa.mutants.processes import Task
from qa.mutants.settling import Trial, settled
from qa.mutants.sites import sites

_SOURCE, _FOLDERS = "src/gpugauge", ("tests", "qa/worlds", "qa/boards")
_SECONDS, _ALL_SECONDS = 300.0, 2400.0
# Not in `make test`, or of no use beside the others.
_LEFT_OUT = ("tests/e2e/", "tests/deploy/")
# What is generated from tables.
_GENERATED = "tests/test_generated.py"


def deletions() -> Iterator[Mutant]:
    """Yield the deletions of an element of a list or table of three or more, in a fixed order."""
    for path in sorted((ROOT / _SOURCE).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found = sites(ast.parse(source), elements=True)
        yield from (Mutant(str(path.relative_to(ROOT)), site, source) for site in found)


def test_files() -> dict[str, str]:
    """Return the texts of the files with tests that `make test` runs."""
    paths = sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("test_*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return {name: text for name, text in texts.items() if not name.startswith(_LEFT_OUT)}


def near(mutant: Mutant, files: dict[str, str]) -> list[str]:
    """Return the tests that probably reach a module: of the same name, in the same folder, that import it or its
    package.
    """
    module = Path(mutant.module)
    folder, package = str(module.parent).replace(_SOURCE, "tests"), ".".join(module.parent.parts[1:])
    names = (f"from {mutant.import_name} import", f"from {package} import {module.stem}")
    same = [name for name in files if Path(name).stem == f"test_{module.stem}"]
    beside = [name for name in files if str(Path(name).parent) == folder]
    importing = [name for name, text in files.items() if any(each in text for each in names)]
    using = [name for name, text in files.items() if f"{package}." in text or f"from {package} " in text]
    return list(dict.fromkeys([*same, *beside, *importing, *using, _GENERATED]))


def tried(drawn: Sequence[Mutant], tests: dict[str, list[str]], seconds: float, jobs: int) -> Iterator[Outcome]:
    """Yield the outcome of each deletion with its tests."""

    def task(trial: Trial) -> Task:
        order = tests[trial.mutant.name]
        return Task(trial, lambda: try_cold(trial, order, ()), seconds)

    yield from (outcome(mutant, answer) for mutant, answer in settled(drawn, task, jobs))


def main() -> int:
    """Draw, run, and print what no test has noticed."""
    parser = argparse.ArgumentParser(prog="python -m qa.mutants.deletions", description=__doc__)
    parser.add_argument("--sample", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="deletions whose name contains this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="run all tests on what the near ones do not notice")
    options = parser.parse_args()
    os.chdir(ROOT)
    for name in _PRELOADED:
        importlib.import_module(name)
    drawn = sample([m for m in deletions() if options.only in m.name], options.sample, options.seed)
    files = test_files()
    tests = {mutant.name: near(mutant, files) for mutant in drawn}
    left: list[Mutant] = []
    for found in tried(drawn, tests, _SECONDS, options.jobs):
        print(f"{found.killed_by or 'UNNOTICED':60.60} {found.mutant.name} (line {found.mutant.site.line})", flush=True)
        left += [] if found.killed_by else [found.mutant]
    if options.all and left:
        rest = {m.name: [name for name in files if name not in tests[m.name]] for m in left}
        again = list(tried(left, rest, _ALL_SECONDS, options.jobs))
        for found in again:
            print(f"all tests: {found.killed_by or 'UNNOTICED':60.60} {found.mutant.name}", flush=True)
        left = [found.mutant for found in again if not found.killed_by]
    print(f"{len(drawn) - len(left)} of {len(drawn)} deletions are noticed (seed {options.seed})")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
