"""A hundred drawn training programs under the hook: no statement about them is wrong (`make strangers`: a thousand)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_frameworks import need_module

ROOT = Path(__file__).parents[2]
PROGRAMS = 100


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_no_statement_about_a_hundred_drawn_programs_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("transformers", "lightning", "accelerate"):
        need_module(module)
    done = subprocess.run(
        [sys.executable, "-m", "qa.strangers", "--programs", str(PROGRAMS)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    with capsys.disabled():
        print("\n" + done.stdout.split("\n\n")[0])
    assert done.returncode == 0, done.stdout + done.stderr
