"""The sitecustomize of `gpugauge run` runs the next sitecustomize on the module path."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpugauge.hook import launch
from gpugauge.hook.finder import Finder
from tests.drawn import seeds

SHOW = "import sys; print(sys.modules['sitecustomize'].__file__); print(*sys.path, sep='\\n')"


def python(program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
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


NAME = "watched_module"


class Asking:
    """Asks all other finders, as the finders of the hook do."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        others = (finder for finder in sys.meta_path if finder is not self)
        return next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)


class Guarded:
    """Asks importlib, which asks all finders, and so this one again."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self._asking:
            return None
        self._asking = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self._asking = False


class Proxying(Guarded):
    """Replaces the loader by one without attributes of its own."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = super().find_spec(name, path, target)
        if spec is not None:
            spec.loader = Proxy(spec.loader)
        return spec


class Proxy:
    __slots__ = ("_loader",)

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)


def _calls(called: list[int], place: int) -> Callable[[str], None]:
    return lambda _: called.append(place)


@seeds(range(200))
def test_finders_that_ask_each_other_find_the_module(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    (tmp_path / f"{NAME}.py").write_text("value = 7")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    called: list[int] = []
    # Two of another package that ask each other find nothing, with or without the hook.
    strangers = draw.sample([Asking(), Guarded(), Guarded(), Proxying()], draw.randint(0, 3))
    ours = [Finder((NAME, "other"), _calls(called, place)) for place in range(draw.randint(1, 3))]
    finders = [*strangers, *ours]
    draw.shuffle(finders)
    monkeypatch.setattr(sys, "meta_path", [*finders, *sys.meta_path])
    assert importlib.import_module(NAME).value == 7
    assert len(called) == len(set(called))
    assert set(called) == set(range(len(ours))) or any(isinstance(finder, Proxying) for finder in strangers)
