"""Killed and stopped daemons and trainings: trainings end as without the hook, and metrics are right afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.wire import messages as wire
from tests.e2e.programs import GPUGAUGE, PATIENCE, Daemon, Series, daemon, wait_for
from tests.hook import wire_1_0
from tests.needs import need

pytestmark = pytest.mark.e2e
UNTIL_FILE = str(Path(__file__).parent / "workloads" / "until_file.py")
FEW_STEPS = """
import sys, torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader([torch.full((8,), float(i)) for i in range(96)], batch_size=2, num_workers=int(sys.argv[1]))
for batch in loader:
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
OUT_OF_MEMORY = 'raise torch.OutOfMemoryError("planted")\n'
Ended = tuple[int, bytes, bytes]


def start(command: list[str], path: Path | None, **variables: str) -> subprocess.Popen[bytes]:
    """Start a program; its hook, if any, connects to the socket `path`."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **variables} | (
        {wire.SOCKET_VARIABLE: str(path)} if path else {}
    )
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Training:
    """A training that runs until end(), under the hook, with the daemon's socket at `path`."""

    def __init__(self, folder: Path, path: Path) -> None:
        self._steps, self._enough = folder / "steps", folder / "enough"
        command = [GPUGAUGE, "run", "--quiet", "--", sys.executable, UNTIL_FILE, str(self._steps), str(self._enough)]
        self.process = start(command, path)

    @property
    def steps(self) -> int:
        """The number of its steps, by its own count."""
        return self._steps.stat().st_size if self._steps.exists() else 0

    def wait_for_steps(self) -> None:
        """Wait for 50 more steps."""
        enough = self.steps + 50
        wait_for(lambda: self.steps >= enough, 30, "the training makes steps")

    def end(self) -> Ended:
        """End it, and return its result."""
        self._enough.touch()
        return ended(self.process)


@contextlib.contextmanager
def training(folder: Path, path: Path) -> Iterator[Training]:
    running = Training(folder, path)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def ended(process: subprocess.Popen[bytes]) -> Ended:
    """Wait for the end; return the exit code, standard output and standard error."""
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


WITHOUT_HOOK: Ended = (3, b"enough\n", b"")


def program(text: str, workers: int, path: Path | None, *prefix: str) -> Ended:
    """Run a program to its end, under the hook if `path` is given."""
    hook = [] if path is None else [GPUGAUGE, "run", "--quiet", "--"]
    return ended(start([*prefix, *hook, sys.executable, "-c", text, str(workers)], path))


@functools.cache
def unwatched(text: str) -> Ended:
    """Return how a program ends without the hook, and without workers of its loader."""
    return program(text, 0, None)


def steps(running: Daemon) -> Series:
    return running.series("torch_steps_total", "process")


def reached(running: Daemon, count: int, process: tuple[str, ...] | None = None) -> Series | None:
    """Return the steps if there is one process, with `count` steps or more."""
    found = steps(running)
    (only,) = found or [None]
    return found if only and found[only] >= count and process in {None, only} else None


def serve(folder: Path) -> contextlib.AbstractContextManager[Daemon]:
    return daemon(folder, "--driver.mode=off")


def begun(running: Daemon, trained: Training) -> tuple[str, ...]:
    """Wait until the training is shown; return its label `process`."""
    found: Series = wait_for(lambda: reached(running, 10), 60, "the training is shown")
    (process,) = found
    assert trained.steps >= 10
    return process


# Not in each push: on a busy machine the end of the training is sometimes not counted within two minutes.
@pytest.mark.everything
def test_training_survives_a_killed_and_a_stopped_daemon(tmp_path: Path) -> None:
    with serve(tmp_path) as first, training(tmp_path, first.socket) as trained:
        process = begun(first, trained)
        known = trained.steps
        first.stop(signal.SIGKILL)
        trained.wait_for_steps()
        with serve(tmp_path) as second:
            wait_for(lambda: reached(second, known, process), 60, "the next daemon shows the training")
            second.process.send_signal(signal.SIGSTOP)
            trained.wait_for_steps()
            known = trained.steps
            second.process.send_signal(signal.SIGCONT)
            wait_for(lambda: reached(second, known, process), 60, "the missed steps are shown")
            second.process.send_signal(signal.SIGSTOP)
            assert trained.end() == WITHOUT_HOOK
            second.process.send_signal(signal.SIGCONT)
            wait_for(lambda: gone(second, "error"), 60, "its end is counted")  # its exit code is 3
            assert steps(second) == {process: trained.steps}
            assert set(second.series("gpugauge_hook_rejected_total", "reason").values()) == {0}


def gone(running: Daemon, reason: str) -> bool:
    """Return whether trainings have ended for this reason only, and their gauges are absent."""
    ends = running.series("gpugauge_trainings_ended_total", "reason")
    gauges = running.series("torch_parameter_bytes", "process")
    return {name for (name,), count in ends.items() if count} == {reason} and not gauges


def test_kill_is_counted_at_once(tmp_path: Path) -> None:
    with serve(tmp_path) as running, training(tmp_path, running.socket) as trained:
        process = begun(running, trained)
        assert len(running.series("torch_parameter_bytes", "process")) == 1
        trained.process.send_signal(signal.SIGKILL)
        assert ended(trained.process) == (-signal.SIGKILL, b"", b"")
        wait_for(lambda: gone(running, "killed"), 60, "the kill is counted")
        lingering = steps(running)

    assert lingering[process] >= 10


@pytest.mark.everything
def test_uncaught_out_of_memory_ends_the_program_and_is_counted_at_once(tmp_path: Path) -> None:
    text = FEW_STEPS + OUT_OF_MEMORY
    alone = unwatched(text)
    with serve(tmp_path) as running:
        watched = program(text, 0, running.socket)
        wait_for(lambda: gone(running, "out_of_memory"), 60, "the reason is counted")
        counted = steps(running)

    assert watched == alone
    assert alone[0] == 1
    assert alone[2].endswith(b"OutOfMemoryError: planted\n")
    assert list(counted.values()) == [48]


@pytest.mark.everything  # a minute
def test_dozens_of_forked_workers_are_one_training(tmp_path: Path) -> None:
    alone = unwatched(FEW_STEPS)
    with serve(tmp_path) as running:
        watched = program(FEW_STEPS, 36, running.socket)
        wait_for(lambda: gone(running, "finished"), 60, "its end is counted")
        counted = steps(running)
        batches = running.series("torch_batches_total", "process")
        ends = running.series("gpugauge_trainings_ended_total", "reason")

    assert list(counted.values()) == [48]
    assert watched == alone
    assert (alone[0], alone[2]) == (0, b"")
    assert list(batches.values()) == [48]
    assert {reason: count for (reason,), count in ends.items() if count} == {"finished": 1}


def test_socket_that_the_training_may_not_reach(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    path = folder / "hook.sock"
    # Without the capabilities by which root may open any file.
    unprivileged = (need("setpriv"), "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    connect = f"import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect({str(path)!r})"
    alone = unwatched(FEW_STEPS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen()
        folder.chmod(0)
        refused = program(connect, 0, None, *unprivileged)
        watched = program(FEW_STEPS, 0, path, *unprivileged)
        folder.chmod(0o700)

    assert b"PermissionError" in refused[2]
    assert watched == alone
    assert (alone[0], alone[2]) == (0, b"")


def test_hook_of_the_next_minor_version(tmp_path: Path) -> None:
    # Its snap has one more key.
    bootstrap = launch.export(tmp_path / "next")
    source = tmp_path / "next" / "gpugauge" / "wire/messages.py"
    major, minor = wire.VERSION
    now = (f"VERSION = ({major}, {minor})", '"kind": KIND_NAMES[type(message)]}')
    then = (f"VERSION = ({major}, {minor + 1})", '"kind": KIND_NAMES[type(message)], "news": {"of": [1.5, None]}}')
    text = source.read_text()
    for old, new in zip(now, then, strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    source.write_text(text)
    alone = unwatched(FEW_STEPS)
    with serve(tmp_path) as running:
        watched = ended(start([sys.executable, "-c", FEW_STEPS, "0"], running.socket, PYTHONPATH=bootstrap))
        wait_for(lambda: list(steps(running).values()) == [48], 60, "its steps are shown")
        rejected = running.series("gpugauge_hook_rejected_total", "reason")

    assert watched == alone
    assert set(rejected.values()) == {0}


def test_hook_of_the_minor_version_before(tmp_path: Path) -> None:
    session = "5" * 32
    with serve(tmp_path) as running, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
        hook.connect(str(running.socket))
        hook.send(wire_1_0.encode(wire_1_0.Hello(session, 1, os.getpid(), facts={"torch": "2.1.2"})))
        hook.send(wire_1_0.encode(wire_1_0.Snap(session, 2, 1, wire_1_0.Progress(7, 0.5))))
        wait_for(lambda: list(steps(running).values()) == [7], 60, "its steps are shown")
        versions = running.series("torch_process_info", "torch")
        hook.send(wire_1_0.encode(wire_1_0.Bye(session, 3, "finished")))
        hook.close()
        # This process lives on, so that its exit status is awaited before the message is believed.
        wait_for(lambda: gone(running, "finished"), 60, "its end is counted")

    assert list(versions) == [("2.1.2",)]
