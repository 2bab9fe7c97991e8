"""Failed tests are run once more in CI: which result that has (tests/again.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import again

ROOT = Path(__file__).parents[1]
PASSES_LATER = """
import pathlib, pytest
@pytest.mark.parametrize("number", range({count}))
def test_later(number):
    mark = pathlib.Path(__file__).with_name(f"seen{{number}}")
    seen = mark.exists()
    mark.touch()
    assert seen
"""


def run(folder: Path, text: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "tests.again", "-q", "--numprocesses=2"]
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_what_passes_the_second_time_is_named(tmp_path: Path) -> None:
    code, text = run(tmp_path, PASSES_LATER.format(count=2))
    assert code == 0
    assert text.count("passed the second time: ") == 2


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    code, text = run(tmp_path, PASSES_LATER.format(count=1) + "def test_never(): assert 0\n")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "not all passed the second time" in text


@pytest.mark.parametrize("text", [PASSES_LATER.format(count=again.MOST + 1), "import nothing_of_this_name"])
def test_many_failures_and_errors_are_not_run_again(tmp_path: Path, text: str) -> None:
    code, output = run(tmp_path, text)
    assert code != 0
    assert "once more" not in output
