"""`gpugauge run`: the environment, and the errors of commands that cannot start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch


def test_the_environment_is_the_callers_with_the_hook_first() -> None:
    result = launch.environment({"HOME": "/h", "PYTHONPATH": "/a:/b"}, "/tmp/s")
    assert result == {
        "HOME": "/h",
        "PYTHONPATH": f"{launch.BOOTSTRAP}:/a:/b",
        "GPUGAUGE_HOOK_SOCKET": "/tmp/s",
    }


@pytest.mark.parametrize("before", ["", ":", "a", ":a", "a:", "a::b", "/nowhere:."])
def test_the_module_path_of_the_program_stays(before: str, tmp_path: Path) -> None:
    """An empty entry is the current folder."""
    command = [sys.executable, "-c", "import sys; print(sys.path)"]
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": before}
    paths = [
        subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for environ in (plain, launch.environment(plain))
    ]

    assert paths[1] == paths[0]


def test_nested_runs_add_nothing() -> None:
    once = launch.environment({})
    assert once == {"PYTHONPATH": launch.BOOTSTRAP}
    assert launch.environment(once) == once


def test_the_directory_on_the_module_path_shadows_nothing() -> None:
    assert [p.name for p in Path(launch.BOOTSTRAP).iterdir() if p.name != "__pycache__"] == ["sitecustomize.py"]


@pytest.mark.parametrize(
    ("command", "letter"),
    [
        (["python", "-I", "train.py"], "I"),
        (["/usr/bin/python3.11", "-uE", "train.py"], "E"),
        (["python", "-W", "ignore", "train.py", "-I"], None),
        (["python", "-WIgnore", "-S", "-m", "x"], "S"),
        (["python", "-m", "train", "-I"], None),
        (["python", "-c", "-I"], None),
        (["python"], None),
        (["torchrun", "-I"], None),
    ],
)
def test_obstacle_names_the_option_of_the_interpreter(command: list[str], letter: str | None) -> None:
    reason = launch.obstacle(command)
    assert reason is None if letter is None else reason is not None and reason.startswith(f"python -{letter} ")


def test_the_command_replaces_the_process() -> None:
    program = (
        "from gpugauge.hook import launch; import sys;"
        "launch.run([sys.executable, '-c', 'import os; print(os.getpid()); raise SystemExit(7)'])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"{process.pid}\n", 7)


@pytest.mark.parametrize(
    ("command", "exit_code", "message"),
    [
        ([], 2, "no command"),
        (["gpugauge-no-such-command"], 127, "gpugauge-no-such-command: no such command"),
        ([os.devnull], 126, "/dev/null: Permission denied"),
    ],
)
def test_a_command_that_cannot_start_is_explained(command: list[str], exit_code: int, message: str) -> None:
    with pytest.raises(launch.LaunchError, match=message) as caught:
        launch.run(command)
    assert caught.value.exit_code == exit_code
