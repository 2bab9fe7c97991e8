"""Real trainings with the CPU build of torch under a real listener."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gpugauge.node import training
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session
from gpugauge.workload.procfs import Procfs

from .conftest import Run, RunFork, finished, until

pytestmark = pytest.mark.torch

TRAINING = """
    import sys, time, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 120
        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.full((8,), float(index))

    def main():
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        steps = 0
        for batch in DataLoader(Slow(), batch_size=2, {options}):
            optimizer.zero_grad()
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            steps += 1
        print(steps, loss.item())

    if __name__ == "__main__":
        main()
"""

# Steps until it is killed.
ENDLESS = """
    import time, torch
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""


def ended(listener: Sessions) -> Session:
    """Return the only session that there has been, once it has ended."""
    until(lambda: [s.connected for s in listener.view()] == [False])
    return listener.view()[0]


def steps_of(session: Session) -> int:
    return session.snap.steps.count if session.snap and session.snap.steps else 0


@pytest.mark.everything
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_steps_and_batches_are_those_of_the_program(context: str, listener: Sessions, run: Run) -> None:
    # New interpreters: torch is imported from its files, by the program and by the worker of `spawn`.
    program = TRAINING.format(options=f"num_workers=1, multiprocessing_context={context!r}")
    output = finished(run(program, RANK="3", WORLD_SIZE="8"))
    session = ended(listener)
    assert session.snap is not None
    assert session.snap.steps is not None
    assert session.snap.batches is not None
    assert session.snap.steps.count == int(output.split()[0]) == 60
    assert sum(session.snap.steps.log2) == 59
    assert session.snap.batches.count == sum(session.snap.batches.log2) == 60
    assert session.snap.batches.seconds > 0.01
    assert [(p.device, p.dtype, p.tensors, p.elements, p.bytes) for p in session.snap.parameters] == [
        ("cpu", "float32", 2, 36, 144)
    ]
    assert session.snap.errors == 0
    assert session.snap.devices == ()
    assert session.end_reason == "finished"
    assert (session.hello.facts["rank"], session.hello.facts["world_size"]) == ("3", "8")
    assert session.hello.facts["init_start"] == str(Procfs().start_time(1))


@contextmanager
def absent(path: Path) -> Iterator[None]:
    yield


@contextmanager
def not_reading(path: Path) -> Iterator[None]:
    """A daemon that accepts and never reads, with the smallest receive buffer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        server.bind(str(path))
        server.listen(1)
        yield


@contextmanager
def not_a_socket(path: Path) -> Iterator[None]:
    """The path is a regular file."""
    path.write_text("")
    yield


@pytest.mark.parametrize("daemon", [absent, not_reading, not_a_socket])
def test_output_and_exit_code_are_the_programs_own(
    daemon: Callable[[Path], AbstractContextManager[None]], tmp_path: Path, fork: RunFork
) -> None:
    program = TRAINING.format(options="num_workers=0") + "        raise SystemExit(3)\n"
    with daemon(tmp_path / "hook.sock"):
        watched = fork(program)
        plain = fork(program, GPUGAUGE_HOOK="0")
        expected = plain.communicate()
        assert watched.communicate() == expected
    assert expected[0].startswith("60 ")
    assert expected[1] == ""
    assert watched.returncode == plain.returncode == 3


def test_switched_off_opens_no_session(listener: Sessions, fork: RunFork) -> None:
    finished(fork(TRAINING.format(options="num_workers=0"), GPUGAUGE_HOOK="0"))
    assert listener.view() == ()


def test_a_restarted_daemon_is_found_and_a_kill_is_reported(tmp_path: Path, listener: Sessions, fork: RunFork) -> None:
    process = fork(ENDLESS)
    until(lambda: any(steps_of(s) > 1 for s in listener.view()))
    before = listener.view()[0]
    listener.stop()
    successor = Sessions(str(listener.path))
    successor.start()
    until(lambda: any(s.snap is not None for s in successor.view()))
    after = successor.view()[0]
    assert after.hello.session == before.hello.session
    assert steps_of(after) >= steps_of(before)
    until(lambda: sum(training.asleep(s) or 0.0 for s in successor.view()) > 0)
    process.send_signal(signal.SIGKILL)
    gone = ended(successor)
    durations = training.step_durations(gone)
    assert gone.end_reason == "killed"
    assert durations is not None
    assert durations.counts[-1] == (training.steps(gone) or 0) - 1  # also after the last message; the first has none
    successor.stop()


def test_a_stopped_daemon_delays_nothing(tmp_path: Path, run: Run, fork: RunFork) -> None:
    serve = """
        import sys, time
        from gpugauge.sessions.listener import Sessions
        Sessions(sys.argv[1]).start()
        print("listening", flush=True)
        time.sleep(600)
    """
    daemon = run(serve, arguments=(str(tmp_path / "hook.sock"),), GPUGAUGE_HOOK="0")
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == "listening\n"
    daemon.send_signal(signal.SIGSTOP)
    program = TRAINING.format(options="num_workers=24")
    assert finished(fork(program)) == finished(fork(program, GPUGAUGE_HOOK="0"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [("torch.cuda.OutOfMemoryError('planted')", "out_of_memory"), ("KeyboardInterrupt", "interrupted")],
)
def test_the_reason_for_the_end_arrives(error: str, reason: str, listener: Sessions, fork: RunFork) -> None:
    program = f"""
        import torch
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.step()
        raise {error}
    """
    fork(program).communicate()
    assert (ended(listener).end_reason, steps_of(listener.view()[0])) == (reason, 1)


@pytest.mark.everything
def test_compiled_models_and_optimizers_are_unchanged(listener: Sessions, fork: RunFork) -> None:
    # The backend does not affect how dynamo handles the hook, and this one needs no compiler.
    program = """
        import torch
        model = torch.nn.Linear(8, 8)
        plain, traced = (torch.optim.SGD(model.parameters(), lr=1e-3) for _ in range(2))
        forward = torch.compile(model, fullgraph=True, backend="eager")
        step = torch.compile(lambda: traced.step(), backend="eager")
        for _ in range(10):
            forward(torch.ones(2, 8)).sum().backward()
            plain.step()
            step()
        print(sum(torch._dynamo.utils.counters["graph_break"].values()))
        print(torch.optim.SGD.step.__code__.co_name)
    """
    watched, _ = fork(program).communicate()
    plain, _ = fork(program, GPUGAUGE_HOOK="0").communicate()
    assert watched == plain != ""
    if watched.endswith("wrapper\n"):
        assert steps_of(ended(listener)) == 10
    else:  # in torch 2.1 dynamo removes the hooks of optimizers, and this program has no loader to count batches
        assert listener.view() == ()
