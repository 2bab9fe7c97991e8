"""The hook in a container with gpugauge's device: what a Python sees with it is what it sees without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpugauge.deviceplugin import plugin
from tests.drawn import cases

# The interpreter of the system: that of a virtual environment has no user base.
BASE = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
# Prints what a program can see of its interpreter, and what a child process sees.
SHOW = """
import json, os, site, subprocess, sys
seen = {
    "path": sys.path, "base": site.getuserbase(), "site": site.getusersitepackages(),
    "variables": {name: value for name, value in os.environ.items() if name.startswith("PYTHON")},
    "customized": [sys.modules[name].__file__ for name in ("sitecustomize", "usercustomize") if name in sys.modules],
    "marks": sorted(name for name in sys.modules if name.startswith("mark_")),
    "armed": any(type(finder).__module__.startswith("gpugauge") for finder in sys.meta_path),
}
if len(sys.argv) > 2:
    seen["child"] = json.loads(subprocess.check_output([sys.executable, *sys.argv[1:-1]]))
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def hook() -> Any:
    folder = Path(tempfile.mkdtemp())
    yield plugin.install(folder)
    shutil.rmtree(folder)


def show(home: Path, **variables: str) -> dict[str, Any]:
    (home / "show.py").write_text(SHOW)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **variables}
    command = [str(BASE), str(home / "show.py"), str(home / "show.py"), "child"]
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=home).stdout
    result: dict[str, Any] = json.loads(text)
    return result


def test_the_hook_can_be_switched_off(hook: Path, tmp_path: Path) -> None:
    seen = show(tmp_path, PYTHONUSERBASE=str(hook / "user"), GPUGAUGE_HOOK="0")

    assert seen["armed"] is seen["child"]["armed"] is False


def test_a_hook_that_cannot_be_loaded_does_not_stop_the_program(hook: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(hook, broken, symlinks=True)
    (broken / "gpugauge/hook/arming.py").write_text("raise RuntimeError")

    assert show(tmp_path, PYTHONUSERBASE=str(broken / "user"))["armed"] is False


@cases("interpreter", ["python3.6", "python3.8", "python3.9", "python3.12", "python3.13"])
def test_each_interpreter_finds_the_hook(hook: Path, interpreter: str) -> None:
    """The folder is that of the interpreter's own `site`."""
    program = shutil.which(interpreter)
    minor = int(interpreter.partition(".")[2])
    if program is None:
        assert (hook / "user/lib" / interpreter / "site-packages/usercustomize.py").is_file()
        return
    environment = {"PATH": os.environ["PATH"], "PYTHONUSERBASE": str(hook / "user"), "HOME": "/nowhere"}
    command = [
        program,
        "-c",
        "import sys; print(*[type(f).__module__ for f in sys.meta_path], 'usercustomize' in sys.modules)",
    ]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:  # a shim for a version that is not active
        return
    assert ("gpugauge.hook.arming" in done.stdout) is (minor >= 9)
    assert done.stdout.rstrip().endswith("True")
    assert done.stderr == ""


def test_the_folder_is_named_by_its_content_and_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plugin.install(tmp_path)
    before = (first / "gpugauge/base/text.py").stat().st_ino
    again = plugin.install(tmp_path)
    monkeypatch.setattr(plugin, "_INTERPRETERS", ("python3.99",))
    other = plugin.install(tmp_path)

    assert again == first != other
    assert (first / "gpugauge/base/text.py").stat().st_ino == before
    assert sorted(tmp_path.iterdir()) == sorted([first, other])


def test_what_an_interrupted_start_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".new-abc" / "gpugauge").mkdir(parents=True)

    assert list(tmp_path.iterdir()) != [plugin.install(tmp_path)] == list(tmp_path.iterdir())


def test_every_user_may_read_the_files(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        made = plugin.install(tmp_path)
    finally:
        os.umask(previous)

    assert [path for path in (made, *made.rglob("*")) if path.stat().st_mode & 0o004 == 0] == []
    assert [path for path in (made, *made.rglob("*")) if path.is_dir() and path.stat().st_mode & 0o001 == 0] == []
