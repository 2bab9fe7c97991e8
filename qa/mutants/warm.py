"""One group of mutants: its tests are collected once, and each mutant is tried in a fork of that process."""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from qa.mutants.codes import compiled, pairs, reporting
from qa.mutants.mutant import DrawnAlike, Failures, Mutant, Outcome, pytest_options
from qa.mutants.mutant import outcome as outcome_of
from qa.mutants.processes import CRASHED, TIMED_OUT, Task, forked
from qa.mutants.settling import Trial, settled
from qa.mutants.started import give

# The time limit of a mutant: so many times what its tests need without it, on a machine as busy as now, and a bit more.
TIMES, _MORE_SECONDS = 3.0, 15.0
_ALONE_SECONDS = 60.0  # of one test in a child of its own
Place = tuple[str, int]  # a file, and the first line of a function in it


@dataclass
class _Seen:
    """What the tests do without a mutant: the functions that each calls, and its seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, set[Place]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class _Calls:
    """Records which functions of some files are called, in this thread: slow, for the imports only."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self.places: set[Place] = set()

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_filename in self._files:
            self.places.add((code.co_filename, code.co_firstlineno))

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


class _Warm:
    """The plugin of the process that forks: collects the tests, and tries the mutants in place of running them."""

    def __init__(self, mutants: Sequence[Mutant], jobs: int, report: Callable[[Outcome], None]) -> None:
        self._mutants, self._jobs, self._report = mutants, jobs, report
        self._files = {mutant.file for mutant in mutants}
        self._calls = _Calls(self._files)
        self._at_import: set[Place] = set()
        self.imported_only: list[Mutant] = []
        self.seen = _Seen()
        self.kills: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Record which functions run while the modules and the tests are imported."""
        with self._calls:
            result = yield
        self._at_import = self._calls.places
        return result

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        for mutant in self._mutants:
            importlib.import_module(mutant.import_name)
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions(self._files)
        gc.freeze()
        self._baseline()
        if self.seen.failed:
            raise pytest.UsageError(f"without a mutant these tests fail: {', '.join(self.seen.failed)}")
        self.imported_only = [mutant for mutant in self._mutants if not self._reaching(mutant)]
        reached = [mutant for mutant in self._mutants if mutant not in self.imported_only]
        for mutant, answer in settled(reached, self._task, self._jobs):
            if answer == {"not_live": True}:
                self.imported_only.append(mutant)
                continue
            outcome = outcome_of(mutant, answer)
            self.kills[outcome.killed_by] = self.kills.get(outcome.killed_by, 0) + 1
            self._report(outcome)
        return True

    def _baseline(self) -> None:
        """Run all tests without a mutant, files at once, in children. Those that fail run once more in their own, not
        observed: a test may count calls.
        """
        waiting: dict[str, list[str]] = {}
        for nodeid in self._items:
            waiting.setdefault(nodeid.split("::")[0], []).append(nodeid)
        for work in (self._observe, self._plainly):
            tasks = [Task(name, lambda ids=ids, work=work: work(ids), 600) for name, ids in waiting.items()]  # type: ignore[misc]  # the lambda has defaults
            waiting = {}
            for name, answer in forked(tasks, self._jobs):
                if answer in (CRASHED, TIMED_OUT):
                    self.seen.failed.append(f"{name} ({answer})")
                    continue
                for nodeid, (seconds, places, failed) in answer.items():
                    self.seen.seconds[nodeid] = seconds
                    self.seen.reached[nodeid] = {(file, line) for file, line in places}
                    waiting |= {nodeid: [nodeid]} if failed else {}
        self.seen.failed += waiting

    def _change(self, before: CodeType, after: CodeType) -> bool:
        """Give the live functions of a module other code. Return whether there were any, and all took it."""
        changed = 0
        for code, other in pairs(before, after):
            for function in self._functions.get(code, ()):
                if len(function.__code__.co_freevars) != len(other.co_freevars):
                    return False
                function.__code__ = other
                changed += 1
        return changed > 0

    def _observe(self, nodeids: list[str]) -> dict[str, tuple[float, list[Place], bool]]:
        seen = {}
        places: set[Place] = set()
        own, report = os.getpid(), Path(os.environ["PYTEST_DEBUG_TEMPROOT"], "reached")  # by other processes

        def reached(file: str, line: int) -> None:
            if (file, line) not in places:
                places.add((file, line))
                if os.getpid() != own:  # a fork of this one
                    with report.open("a", encoding="utf-8") as there:
                        there.write(f"{line} {file}\n")

        builtins.__reached__ = reached  # type: ignore[attr-defined] # for reporting()
        report.touch()
        report.chmod(0o666)
        sources = {file: Path(file).read_text(encoding="utf-8") for file in self._files}
        give({file: reporting(source, file, str(report)) for file, source in sources.items()})
        for file, source in sources.items():
            self._change(compiled(source, file), reporting(source, file))
        for nodeid, following in zip(nodeids, [*nodeids[1:], None], strict=True):
            began = time.monotonic()
            places.clear()
            failed = self._run(nodeid, following)
            for line in report.read_text(encoding="utf-8").splitlines():
                number, _, file = line.partition(" ")
                places.add((file, int(number)))
            os.truncate(report, 0)
            seen[nodeid] = (time.monotonic() - began, sorted(places), bool(failed))
        return seen

    def _plainly(self, nodeids: list[str]) -> dict[str, tuple[float, list[Place], bool]]:
        """Run a test that may reach everything."""
        began, failed = time.monotonic(), self._run(nodeids[0], None)
        places = [(code.co_filename, code.co_firstlineno) for code in self._functions]
        return {nodeids[0]: (time.monotonic() - began, places, bool(failed))}

    def _run(self, nodeid: str, following: str | None) -> str:
        item = self._items[nodeid]
        failures = Failures()
        item.config.pluginmanager.register(failures)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=self._items[following] if following else None)
        item.config.pluginmanager.unregister(failures)
        return failures.failed

    def _run_alone(self, nodeid: str) -> str:
        """Run a test in a child: what the tests before it have left behind (a thread, say) cannot let it fail."""
        ((_, answer),) = forked([Task(nodeid, lambda: self._run(nodeid, None), _ALONE_SECONDS)], 1)
        return nodeid if answer in (CRASHED, TIMED_OUT) else str(answer)

    def _reaching(self, mutant: Mutant) -> list[str]:
        if mutant.site.function is None or (mutant.file, mutant.site.function) in self._at_import:
            return []
        place = mutant.file, mutant.site.function
        return [nodeid for nodeid, places in self.seen.reached.items() if place in places]

    def _task(self, trial: Trial) -> Task:
        nodeids = [nodeid for nodeid in self._reaching(trial.mutant) if trial.runs(nodeid)]
        seconds = sum(self.seen.seconds[nodeid] for nodeid in nodeids)
        return Task(trial, lambda: self._try(trial, nodeids), _MORE_SECONDS + TIMES * seconds)

    def _try(self, trial: Trial, nodeids: list[str]) -> dict[str, Any]:
        """Return the test that fails with the mutant, after changing the live functions."""
        mutant = trial.mutant
        source, file = mutant.source, mutant.file
        code = compiled(source, file, mutant.site.name)
        give({file: code})
        if not self._change(compiled(source, file), code):
            return {"not_live": True}
        ordered = sorted(nodeids, key=lambda n: (-self.kills.get(n, 0), self.seen.seconds[n]))
        for number, (nodeid, following) in enumerate(zip(ordered, [*ordered[1:], None], strict=True), 1):
            if failed := self._run_alone(nodeid) if trial.without else self._run(nodeid, following):
                return {"killed_by": failed, "tests": number}
        return {"killed_by": "", "tests": len(ordered)}


def _functions(files: set[str]) -> dict[CodeType, list[FunctionType]]:
    found: dict[CodeType, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in files:
            found.setdefault(thing.__code__, []).append(thing)
    return found


def try_warm(
    mutants: Sequence[Mutant], tests: list[str], jobs: int, report: Callable[[Outcome], None]
) -> tuple[list[Mutant], list[str], float]:
    """Try mutants in functions. Return those that need a fresh import, the tests, best first, and their seconds without
    a mutant. To be called in a child: the modules under test stay imported. Raises RuntimeError if the tests fail
    without a mutant.
    """
    plugin = _Warm(mutants, jobs, report)
    code = pytest.main(pytest_options(tests), plugins=[plugin, DrawnAlike()])
    if code != pytest.ExitCode.OK or not plugin.seen.seconds:
        raise RuntimeError(f"pytest ended with {code!r}: the tests fail without a mutant")
    order = sorted(plugin.seen.seconds, key=lambda n: (-plugin.kills.get(n, 0), plugin.seen.seconds[n]))
    return plugin.imported_only, order, sum(plugin.seen.seconds.values())
