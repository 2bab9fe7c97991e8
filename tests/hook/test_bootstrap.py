"""The sitecustomize of `gpugauge run` runs the next sitecustomize on the module path."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch

SHOW = "import sys; print(sys.modules['sitecustomize'].__file__); print(*sys.path, sep='\\n')"


def python(program: str, *paths: Path) -> "subprocess.CompletedProcess[str]":
    environ = launch.environment({"PYTHONPATH": ":".join(map(str, paths))})
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_the_next_sitecustomize_runs(tmp_path: Path) -> None:
    own = tmp_path / "sitecustomize.py"
    own.write_text("print('mine')")
    result = python(SHOW, tmp_path)
    assert (result.stdout.splitlines()[:2], result.stderr) == (["mine", str(own)], "")


def test_an_error_in_the_next_sitecustomize_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import a_module_that_is_not_there")
    result = python("print('goes on')", tmp_path)
    assert result.stdout == "goes on\n"
    assert "Error in sitecustomize" in result.stderr
    assert "a_module_that_is_not_there" in result.stderr


def test_the_module_path_is_the_programs_own(tmp_path: Path) -> None:
    result = python("import sys; print(*sys.path, sep='\\n')", tmp_path)
    assert str(tmp_path) in result.stdout.splitlines()
    assert launch.BOOTSTRAP not in result.stdout.splitlines()


def test_a_child_interpreter_is_armed_too() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.meta_path[0])'])"
    assert "Finder" in python(program).stdout


@pytest.mark.parametrize("name", ["base/text.py", "wire", "hook"])
def test_what_a_training_loads_runs_on_python_3_9(name: str) -> None:
    vermin = Path(sys.executable).with_name("vermin")
    target = Path(launch.__file__).parents[1] / name
    result = subprocess.run([vermin, "-t=3.9-", "--no-tips", target], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
