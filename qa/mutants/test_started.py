"""Code in the processes that a test starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from qa.mutants.codes import compiled, reporting
from qa.mutants.processes import Task, forked
from qa.mutants.started import give

SOURCE = '"""A module."""\nfrom __future__ import annotations\n\ndef f():\n    return 1\n\nprint(f(), f())\n'


def test_started_processes_have_a_mutant_and_report_what_they_reach(tmp_path: Path) -> None:
    module, report = tmp_path / "changed.py", tmp_path / "report"
    module.write_text(SOURCE)

    def run() -> str:
        command = [sys.executable, "-c", "import changed"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    def mutated() -> str:
        give({str(module): compiled(SOURCE, str(module), "f: return 1: 1 -> 2")})
        return run()

    def observed() -> str:
        give({str(module): reporting(SOURCE, str(module), str(report))})
        return run()

    tasks = [Task("plain", run, 60), Task("mutated", mutated, 60), Task("observed", observed, 60)]

    assert dict(forked(tasks, 1)) == {"plain": "1 1\n", "mutated": "2 2\n", "observed": "1 1\n"}
    assert report.read_text() == f"4 {module}\n"
