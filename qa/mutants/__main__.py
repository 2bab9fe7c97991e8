"""Mutation testing: `make mutants`. Draws mutants of each group of modules, and runs the tests that reach them.

Two libraries were considered. mutmut 3 replaces each function by a switch between its mutants, so it has no
mutants of tables, defaults and class bodies, draws no sample and deletes no statement. cosmic-ray writes each mutant to
the disk and starts an interpreter for it, which takes 2 s with our imports before the first test runs.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from qa.bench import figures
from qa.mutants import report
from qa.mutants.codes import compiled
from qa.mutants.cold import try_cold
from qa.mutants.mutant import ROOT, Mutant, Outcome, outcome
from qa.mutants.processes import Task, forked
from qa.mutants.settling import Trial, settled
from qa.mutants.sites import sites
from qa.mutants.warm import TIMES, try_warm

GROUPS = Path(__file__).with_name("groups.yaml")
# Imported once, before the forks. None of them imports our modules.
_PRELOADED = ("bcrypt", "click", "cryptography.x509", "prometheus_client", "pydantic", "tornado.web")
_RESULT = "mutants"  # of qa/bench/results
_GROUP_SECONDS, _IMPORT_SECONDS = 3600.0, 60.0


def mutants_of(group: Mapping[str, Any]) -> Iterator[Mutant]:
    """Yield the mutants of the modules of a group, in a fixed order."""
    elements = bool(group.get("elements"))
    for pattern in group["modules"]:
        for path in sorted(ROOT.glob(pattern)):
            source = path.read_text(encoding="utf-8")
            found = sites(ast.parse(source), elements=elements)
            yield from (Mutant(str(path.relative_to(ROOT)), site, source) for site in found)


def sample(mutants: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """Return `number` mutants. Whether one is drawn depends on its name, so an edit elsewhere changes little."""

    def drawn(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    different = (mutant for mutant in sorted(mutants, key=drawn) if _differs(mutant))
    return [mutant for _, mutant in zip(range(number), different, strict=False)]


def _differs(mutant: Mutant) -> bool:
    try:
        return compiled(mutant.source, mutant.file) != compiled(mutant.source, mutant.file, mutant.site.name)
    except (SyntaxError, ValueError):
        return False


def _tests(patterns: list[str]) -> list[str]:
    single = [pattern for pattern in patterns if "::" in pattern]
    files = [path for pattern in patterns if "::" not in pattern for path in sorted(ROOT.glob(pattern))]
    return [str(path.relative_to(ROOT)) for path in files] + single


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


def run_group(drawn: list[Mutant], tests: list[str], jobs: int, show: bool) -> list[Outcome]:
    """Return the outcome of each mutant. Raises RuntimeError if the tests fail without a mutant."""
    outcomes: list[Outcome] = []
    by_name = {mutant.name: mutant for mutant in drawn}

    def finished(found: Outcome) -> None:
        if show or not found.killed_by:
            _say(f"  {found.killed_by or 'SURVIVES':60.60} {found.mutant.name} (line {found.mutant.site.line})")

    def warm() -> dict[str, Any]:
        done: dict[str, dict[str, Any]] = {}

        def keep(found: Outcome) -> None:
            finished(found)
            done[found.mutant.name] = {"killed_by": found.killed_by, "tests": found.tests}

        again, order, seconds = try_warm([m for m in drawn if m.site.function], tests, jobs, keep)
        return {"done": done, "again": [mutant.name for mutant in again], "order": order, "seconds": seconds}

    answer: dict[str, Any] = next(iter(forked([Task("warm", warm, _GROUP_SECONDS, loud=True)], 1)))[1]
    if "done" not in answer:
        raise RuntimeError(f"the tests fail without a mutant: pytest {' '.join(tests)}")
    outcomes += [outcome(by_name[name], result) for name, result in answer["done"].items()]
    cold = [m for m in drawn if not m.site.function] + [by_name[name] for name in answer["again"]]

    def task(trial: Trial) -> Task:
        return Task(trial, lambda: try_cold(trial, tests, answer["order"]), _IMPORT_SECONDS + TIMES * answer["seconds"])

    for mutant, result in settled(cold, task, jobs):
        outcomes.append(outcome(mutant, result))
        finished(outcomes[-1])
    return outcomes


def main() -> int:
    """Run the groups, print the survivors; 1 if the floor, or the list of survivors, is not kept."""
    groups: Mapping[str, Mapping[str, Any]] = yaml.safe_load(GROUPS.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(prog="python -m qa.mutants", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(groups)}; all without")
    parser.add_argument("--sample", type=int, default=100, help="mutants of each group, at most")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--only", default="", help="mutants whose name contains this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the killed ones, too")
    parser.add_argument("--write", action="store_true", help="write result and table of docs/proof/reliability.md")
    options = parser.parse_args()
    os.chdir(ROOT)
    for name in _PRELOADED:
        importlib.import_module(name)
    every = {name: list(mutants_of(group)) for name, group in groups.items()}
    known, results = report.known_survivors(), []
    for name in options.groups or groups:
        began = time.monotonic()
        drawn = sample([m for m in every[name] if options.only in m.name], options.sample, options.seed)
        _say(f"{name}: {len(drawn)} of {len(every[name])} mutants")
        outcomes = run_group(drawn, _tests(groups[name]["tests"]), options.jobs, options.show)
        result = report.Group(name, len(every[name]), outcomes, time.monotonic() - began, known)
        results.append(result)
        _say(f"{name}: {result.killed:.1%} killed, {len(result.survivors)} survive, {result.seconds:.0f} s")
    existing = {mutant.name: mutant for group in every.values() for mutant in group}
    faults = report.faults(results, existing, known)
    for fault in faults:
        _say(fault)
    if options.write:
        _write(results, options.seed)
    return 1 if faults else 0


def _write(results: list[report.Group], seed: int) -> None:
    """Write the result file and the table of the document; groups that were not run keep their rows."""
    rows: dict[str, dict[str, Any]] = {}
    survivors: dict[str, list[str]] = {}
    if (figures.RESULTS / f"{_RESULT}.json").exists():
        before = figures.read(_RESULT)
        rows = {row["group"]: row for row in before["tables"][0]["rows"]}
        survivors = before["survivors"]
    rows |= {result.name: result.row() for result in results}
    survivors |= {result.name: sorted(o.mutant.name for o in result.survivors) for result in results}
    figures.keep(_RESULT, [report.table(list(rows.values()))], {"seed": seed, "survivors": survivors})


if __name__ == "__main__":
    sys.exit(main())
