"""No process of gpugauge runs a file of the current folder, nor one that an environment variable of Python names.

Every module that any process could import is planted: the standard library, all installed packages and the two that
`site` imports. Each planted file reports that it was run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from gpugauge.base import isolated
from gpugauge.driver.client import Worker
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.settings.reader import SettingsReader

PROGRAM = str(Path(sys.executable).parent / "gpugauge")
NAMES = frozenset(
    name
    for name in {
        *sys.stdlib_module_names,
        *(name.split(".")[0] for name in sys.modules),
        *packages_distributions(),
        *("sitecustomize", "usercustomize", "torch", "pynvml", "gpugauge"),
    }
    if name.isidentifier() and name != "__main__"
)
# Needs only a module that no file can replace: the interpreter imports `encodings` before there is an `open`.
REPORT = "import posix; posix.write(posix.open({file!r}, 0o2101), b'{name} ')  # write, create, append\n"


class Trap:
    """A folder with planted modules, and the names of those that were run."""

    def __init__(self, folder: Path, names: frozenset[str] = NAMES) -> None:
        self.folder, self._report = folder / "trap", folder / "run"
        self.folder.mkdir()
        for number, name in enumerate(sorted(names)):
            file = self.folder / (f"{name}.py" if number % 2 else f"{name}/__init__.py")
            file.parent.mkdir(exist_ok=True)
            file.write_text(REPORT.format(file=str(self._report), name=name))

    @property
    def run(self) -> list[str]:
        return self._report.read_text().split() if self._report.exists() else []

    def environment(self) -> dict[str, str]:
        """Return an environment for a command: its home folder is the trap as well."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONSTARTUP": str(self.folder / "torch.py"),
            "LD_LIBRARY_PATH": "",
        }


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def serve(command: list[str], folder: Path, environment: Mapping[str, str], *flags: str) -> str:
    """Run the daemon in a folder until it serves and has read its settings again; return its log."""
    flags = (f"--hook.socket={folder}/../hook.sock", f"--web.listen-address=127.0.0.1:{free_port()}", *flags)
    log = folder.parent / "log"
    with log.open("w") as stream:
        process = subprocess.Popen([*command, "serve", *flags], cwd=folder, env=environment, stderr=stream)
    try:
        for sentence, number in (("msg=serving", signal.SIGHUP), ('msg="settings reloaded"', signal.SIGTERM)):
            end = time.monotonic() + 60
            while sentence not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            process.send_signal(number)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    return log.read_text()


@pytest.mark.parametrize("flag", ["--driver.mode=auto", "--simulate=node"])
def test_the_daemon_and_its_children_run_no_file_of_the_current_folder(trap: Trap, flag: str) -> None:
    serve([PROGRAM], trap.folder, trap.environment(), flag)

    assert trap.run == []


COMMANDS = (
    ("--version",),
    ("--help",),
    ("attach",),
    ("dashboards", "--output", "OUT"),
    ("doctor", "--no-timed"),
    ("export-hook", "OUT"),
    ("metrics",),
    ("release", "--for", "1m"),
    ("rules",),
    ("run", "--", "true"),
    ("scenarios",),
    ("serve", "--help"),
    ("status",),
)


@pytest.mark.timeout(300)
def test_no_command_runs_a_file_of_the_current_folder(trap: Trap) -> None:
    for number, arguments in enumerate(COMMANDS):
        given = [str(trap.folder.parent / f"out{number}") if argument == "OUT" else argument for argument in arguments]

        done = subprocess.run(
            [PROGRAM, *given], cwd=trap.folder, env=trap.environment(), capture_output=True, text=True, check=False
        )

        assert trap.run == [], (arguments, done.stderr)
        assert "Traceback" not in done.stderr


def run_by_python(tmp_path: Path, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the modules that Python itself runs from the current folder for `python -m NAME`, before those of NAME."""
    found: frozenset[str] = frozenset({"gpugauge"})  # the one that -m names
    for attempt in range(50):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        bare = Trap(folder, NAMES - found)
        (bare.folder / "planted_here.py").write_text("")
        subprocess.run(
            [sys.executable, "-m", "planted_here"], cwd=bare.folder, env=environment, capture_output=True, check=False
        )
        if not bare.run:
            return found
        found |= set(bare.run)
    raise AssertionError(found)


@pytest.mark.parametrize("path", ["", os.pathsep])
def test_python_m_runs_no_file_of_the_current_folder_after_its_own_imports(tmp_path: Path, path: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/", **({"PYTHONPATH": path} if path else {})}
    folder = tmp_path / "of-gpugauge"
    folder.mkdir()
    trap = Trap(folder, NAMES - run_by_python(tmp_path, environment))

    serve([sys.executable, "-m", "gpugauge"], trap.folder, environment, "--driver.mode=auto")

    assert trap.run == []


def test_children_ignore_the_variables_of_the_interpreter(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trap.folder)
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPLATLIBDIR"):
        monkeypatch.setenv(name, str(trap.folder))
    monkeypatch.setenv("PYTHONSTARTUP", str(trap.folder / "torch.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("GPUGAUGE_LOG_LEVEL", "debug")

    settings = SettingsReader(["serve"]).read()
    worker = Worker(NVIDIA.worker)
    try:
        reply = worker.ask("open", 30)
        folder = str(Path(f"/proc/{worker.pid}/cwd").readlink())
    finally:
        worker.end()

    assert trap.run == []
    assert settings.log.level == "debug"
    assert reply.op == "open"
    assert folder == isolated.FOLDER


def test_relative_paths_of_the_settings_are_those_of_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "settings.yaml").write_text("log: {level: error}\n")

    assert SettingsReader(["serve", "--config.file=../settings.yaml"]).read().log.level == "error"


def test_the_daemon_starts_in_a_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    isolated.forget_current_folder()
    assert SettingsReader(["serve"]).read().log.level == "info"
    monkeypatch.chdir(tmp_path)


def test_module_path_without_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = str(Path(os.__file__).parent)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), f"{tmp_path}/below", library, "/opt/packages"])

    isolated.forget_current_folder()

    assert sys.path == [f"{tmp_path}/below", library, "/opt/packages"]


def test_the_folders_of_the_interpreter_stay_also_as_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    library = str(Path(os.__file__).parent)
    packages = str(Path(pytest.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [packages, library, packages])
    monkeypatch.chdir(packages)

    isolated.forget_current_folder()

    assert sys.path == [library, packages]


def test_an_isolated_process_finds_what_this_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / 'it\'s \udcff a "folder"\n'
    odd.mkdir()
    (odd / "only_there.py").write_text("import sys\ndef main(): print(sys.argv[1:], end='')\n")
    monkeypatch.syspath_prepend(str(odd))

    done = subprocess.run(
        isolated.command("only_there", "a b", "c"),
        cwd=isolated.FOLDER,
        env=isolated.environment({"PYTHONPATH": "/nowhere"}),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("['a b', 'c']", "")
