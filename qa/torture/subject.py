"""The daemon under test: real, on a simulated driver, with the switches that a fault needs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
from tests.certificates import Authority

from gpugauge.simulator import WORKER
from qa.bench.measure import free_port
from qa.torture.truth import Truth
from qa.torture.users.groups import Limited

_CLOCK_SETTLED_SECONDS = 3.0
_CLOCK = Path(__file__).parent / "clock"
_ROOT = Path(__file__).parents[2]
FULL_PIPE = "full pipe"
_PASSWORD = "right"  # of the users scraper, user0, user1 …
_USERS = ["scraper", *(f"user{number}" for number in range(20))]
_BCRYPT_COST = 10  # as htpasswd -B and Prometheus' documentation have it: 60 ms


@dataclass
class Subject:
    """A running daemon and its folder."""

    folder: Path
    port: int
    start: Callable[[], subprocess.Popen[bytes]]
    """Starts a daemon."""
    process: subprocess.Popen[bytes]
    truth: Truth
    sleepers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Real processes on the GPUs."""
    login: dict[str, str] = field(default_factory=dict)
    """The headers of a scrape."""
    tls: bool = False
    limits: Limited | None = None
    clock_offset: float = 0.0
    _stepped_at: float = float("-inf")

    @property
    def pid(self) -> int:
        """The daemon's pid."""
        return self.process.pid

    @property
    def hook(self) -> str:
        """The path of the hook's socket."""
        return str(self.folder / "hook.sock")

    def worker(self) -> int | None:
        """Return the worker's pid; None if there is no worker."""
        return self._child(WORKER)

    def receiver(self) -> int | None:
        """Return the pid of the process that holds the hooks' connections; None if there is none."""
        return self._child("gpugauge.sessions.receiver")

    def _child(self, word: str) -> int | None:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        for child in (int(c) for t in tasks for c in _read(t).split()):
            if word in _read(Path(f"/proc/{child}/cmdline")):
                return child
        return None

    def log(self) -> str:
        """Return the log so far."""
        return _read(self.folder / "daemon.log")

    def unix(self) -> float | None:
        """Return the time by the daemon's wall clock; None for 3 s after it was set: a snapshot may be older."""
        settled = time.monotonic() - self._stepped_at >= _CLOCK_SETTLED_SECONDS
        return time.time() + self.clock_offset if settled else None

    def step_clock(self, seconds: float) -> None:
        """Step the daemon's wall clock."""
        self.clock_offset += seconds
        self._stepped_at = time.monotonic()
        part = self.folder / "clock.part"
        part.write_text(str(self.clock_offset))
        part.rename(self.folder / "clock")


def switch(folder: Path) -> Path:
    """Return the file whose existence switches the scenario's faults on."""
    return folder / "fault"


@dataclass(frozen=True)
class Setting:
    """The set-up of a daemon. `faults` and `gpu` belong to the scenario. With `real`, the processes on the GPUs are
    real, and only the driver's library is simulated. With `clock`, the wall clock can be set. `files` and `fifos` are
    created in the daemon's folder; {} stands for this folder in faults and flags. `log` is the destination of the log:
    a path, "full pipe", or "" for a file in the folder. With `users`, a login is needed; with `tls`, the port speaks
    TLS. With `memory` (bytes) and `tasks`, a cgroup limits the daemon and its children.
    """

    devices: int = 3
    faults: Sequence[Mapping[str, Any]] = ()
    gpu: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    flags: Sequence[str] = ()
    real: bool = False
    clock: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    fifos: Sequence[str] = ()
    log: str = ""
    users: bool = False
    tls: bool = False
    memory: int = 0
    tasks: int = 0


@contextlib.contextmanager
def subject(setting: Setting) -> Iterator[Subject]:
    """Run a daemon inside the context."""
    with contextlib.ExitStack() as stack:
        # A folder that was not empty when it was removed has ended a whole run.
        temporary = tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        folder.chmod(0o755)  # other users open the hook's socket
        sleepers = [subprocess.Popen(["sleep", "infinity"]) for _ in range(setting.devices if setting.real else 0)]
        for sleeper in sleepers:
            stack.callback(_end, sleeper)
        for name, text in setting.files.items():
            (folder / name).write_text(text)
        for name in setting.fifos:
            os.mkfifo(folder / name)
        faults = [{k: _placed(v, folder) for k, v in fault.items()} for fault in setting.faults]
        truth = Truth(setting.devices, faults, setting.gpu, [sleeper.pid for sleeper in sleepers])
        port = free_port()
        command = _command(truth, folder, real=setting.real)
        command += [f"--web.listen-address=127.0.0.1:{port}", f"--hook.socket={folder}/hook.sock"]
        if setting.real:  # the GPUs of the library are not remembered as those of this machine
            command.append(f"--driver.state-file={folder}/gpus.json")
        command += [_placed(flag, folder) for flag in setting.flags]
        if setting.users or setting.tls:
            _web_configuration(folder, setting)
            command.append(f"--web.config.file={folder}/web.yaml")
        limits = Limited(folder.name, setting.memory, setting.tasks) if setting.memory else None
        if limits:
            stack.callback(limits.close)
            command = limits.join(command)
        path = os.pathsep.join(filter(None, [str(_CLOCK), os.environ.get("PYTHONPATH")]))
        clock = {"TORTURE_CLOCK": str(folder / "clock"), "PYTHONPATH": path} if setting.clock else {}

        def start() -> subprocess.Popen[bytes]:
            with _log(setting.log, folder, stack) as out:
                return subprocess.Popen(command, stderr=out, stdout=out, env={**os.environ, **clock}, cwd=_ROOT)

        login = header_of(_USERS[0]) if setting.users else {}
        made = Subject(folder, port, start, start(), truth, sleepers, login, setting.tls, limits)
        stack.callback(lambda: _end(made.process))
        yield made


def header_of(user: str) -> dict[str, str]:
    """Return the header with the right login of a user: scraper, user0, user1 …"""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{_PASSWORD}'.encode()).decode()}"}


def _web_configuration(folder: Path, setting: Setting) -> None:
    """Write web.yaml, with a certificate and users as the setting has them."""
    wanted: dict[str, Any] = {}
    if setting.tls:
        certificate, key = Authority().issue(folder, "server", "localhost")
        wanted["tls_server_config"] = {"cert_file": str(certificate), "key_file": str(key)}
    if setting.users:
        hashed = bcrypt.hashpw(_PASSWORD.encode(), bcrypt.gensalt(_BCRYPT_COST)).decode()
        wanted["basic_auth_users"] = dict.fromkeys(_USERS, hashed)
    (folder / "web.yaml").write_text(json.dumps(wanted))


def _command(truth: Truth, folder: Path, *, real: bool) -> list[str]:
    if real:
        (folder / "node.json").write_text(json.dumps(truth.scenario().simulation()))
        return [sys.executable, "-m", "qa.bench.ours", str(folder / "node.json"), "serve"]
    (folder / "node.yaml").write_text(json.dumps(truth.plain))
    return [str(Path(sys.executable).parent / "gpugauge"), "serve", f"--simulate={folder / 'node.yaml'}"]


@contextlib.contextmanager
def _log(place: str, folder: Path, stack: contextlib.ExitStack) -> Iterator[int]:
    if place == FULL_PIPE:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)  # never read, and not closed before the end
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
    else:
        writing = os.open(place or folder / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    yield writing
    os.close(writing)


def _placed(value: Any, folder: Path) -> Any:
    return value.replace("{}", str(folder)) if isinstance(value, str) else value


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait(20)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
