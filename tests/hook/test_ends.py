"""The reason for the end of a training process. The truth is the exit status that its parent reads."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.sessions import ends
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session
from tests.drawn import EVERYTHING

from .conftest import Run, finished, until


@dataclass(frozen=True)
class Way:
    """Statements that end a process. `cause` is the reason, where the exit status does not show it.

    `handled`: the program itself turns the cause into an exit code, so multiprocessing does not hide the cause.
    `known`: the process itself knows the reason.
    """

    statements: str
    cause: str = ""
    handled: bool = False
    known: bool = True


WAYS = {
    "return": Way("pass"),
    "exit": Way("sys.exit()"),
    "exit 0": Way("sys.exit(0)"),
    "exit 3": Way("sys.exit(3)"),
    "exit 130": Way("sys.exit(130)"),
    "exit 256": Way("sys.exit(256)"),
    "exit with a text": Way("sys.exit('text')"),
    "SystemExit()": Way("raise SystemExit", known=False),
    "SystemExit(0)": Way("raise SystemExit(0)", known=False),
    "SystemExit(3)": Way("raise SystemExit(3)", known=False),
    "a caught exit": Way("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass"),
    "a caught exit, then another": Way(
        "try:\n    sys.exit(0)\nexcept SystemExit:\n    pass\nraise SystemExit(3)", known=False
    ),
    "_exit(0)": Way("os._exit(0)"),
    "_exit(3)": Way("os._exit(3)"),
    "an error": Way("1 / 0"),
    "MemoryError": Way("raise MemoryError", "out_of_memory"),
    "memory of a GPU": Way("raise type('OutOfMemoryError', (RuntimeError,), {})", "out_of_memory"),
    "memory of the CPU": Way(
        'raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can\'t allocate")',
        "out_of_memory",
    ),
    "a handled MemoryError": Way(
        "try:\n    raise MemoryError\nexcept MemoryError:\n    sys.exit(1)", "out_of_memory", handled=True
    ),
    "a handled Ctrl-C": Way(
        "try:\n    raise KeyboardInterrupt\nexcept BaseException:\n    sys.exit(1)", "interrupted", handled=True
    ),
    "SIGINT": Way("signal.raise_signal(signal.SIGINT)"),
    "SIGTERM": Way("signal.raise_signal(signal.SIGTERM)"),
    "SIGTERM with a handler": Way(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nsignal.raise_signal(signal.SIGTERM)"
    ),
    "SIGKILL": Way("os.kill(os.getpid(), signal.SIGKILL)"),
    "SIGSEGV": Way("os.kill(os.getpid(), signal.SIGSEGV)"),
    "abort": Way("os.abort()"),
    "the exit of C": Way("import ctypes\nctypes.CDLL(None).exit(3)", known=False),
    "an error in atexit": Way("atexit.register(lambda: 1 / 0)"),
    "an exit in atexit": Way("atexit.register(lambda: sys.exit(3))"),
    # As multiprocessing does.
    "the functions of atexit, then _exit(3)": Way("atexit._run_exitfuncs()\nos._exit(3)"),
    "an exit of a thread": Way("t = threading.Thread(target=sys.exit, args=(3,))\nt.start()\nt.join()"),
    "an error of a thread": Way("t = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()"),
    "exec": Way("os.execv('/bin/sleep', ['sleep', '1'])", "other"),
    "a failing exec": Way("try:\n    os.execvp('nonexistent', ['x'])\nexcept OSError:\n    sys.exit(3)"),
}

# The statements that enclose the way to end.
SURROUNDINGS = {
    "plain": "{way}",
    "finally": "try:\n{indented}\nfinally:\n    time.sleep(0)",
    "with": "with open(os.devnull):\n{indented}",
    "handling": "try:\n    raise ValueError\nexcept ValueError:\n{indented}",
    # As pytest does for its debugger, without the frame that catches the error.
    "stored": "try:\n    json.loads('[')\nexcept Exception:\n"
    "    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()\n"
    "    sys.last_traceback = sys.last_traceback.tb_next\n{way}",
}

HEAD = """
import atexit, json, multiprocessing, os, signal, sys, threading, time, torch

def train_and_end():
    optimizer = torch.Optimizer()
    optimizer.step(), optimizer.step()
{in_function}
"""

MULTIPROCESSING = """
if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=train_and_end)
    child.start()
    child.join()
    print(json.dumps(child.exitcode))
"""

# The program that trains and ends; one with a child prints the exit code of the child.
KINDS = {
    "script": "train_and_end()",
    "module": "train_and_end()",
    "command": "train_and_end()",
    "top level": "optimizer = torch.Optimizer()\noptimizer.step(), optimizer.step()\n{at_top}",
    "fork": """
pid = os.fork()
if not pid:
    train_and_end()
else:
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
""",
    **{
        f"multiprocessing {method}": MULTIPROCESSING.format(method=method) for method in ("fork", "spawn", "forkserver")
    },
}


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, int | None]]:
    """Return a list that gets what each reason followed from: the last message, and the status in the kernel."""
    found = []
    original = ends.reason

    def reason(bye: str | None, status: int | None, **named: bool) -> str:
        found.append((bye, status))
        return original(bye, status, **named)

    monkeypatch.setattr(ends, "reason", reason)
    return found


def program(kind: str, way: Way, surrounding: str) -> str:
    statements = SURROUNDINGS[surrounding].format(way=way.statements, indented=textwrap.indent(way.statements, "    "))
    head = HEAD.format(in_function=textwrap.indent(statements, "    "))
    return head + KINDS[kind].replace("{at_top}", statements)


def exit_code(folder: Path, kind: str, source: str, site: Path) -> int:
    """Run the program, and return the exit code of the process that trains, negative for a signal."""
    (folder / "ending.py").write_text(source)
    options = {"module": ["-m", "ending"], "command": ["-c", source]}.get(kind, ["ending.py"])
    environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONPATH": f"{site}:{folder}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *options],
        env=launch.environment(environ, str(folder / "hook.sock")),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "exitcode" not in KINDS[kind]:
        return done.returncode
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


def by_code(code: int) -> str:
    if code == 0:
        return "finished"
    if code in (-signal.SIGINT, 130):
        return "interrupted"
    return "killed" if code < 0 else "error"


def the_end(listener: Sessions) -> Session:
    until(lambda: [bool(s.end_reason) for s in listener.view()] == [True])
    return listener.view()[0]


DRAWS = [
    (name, kind, surrounding)
    for name in WAYS
    for kind, surrounding in random.Random(name).sample(
        [(k, s) for k in KINDS for s in SURROUNDINGS], 3 if EVERYTHING else 1
    )
]


@pytest.mark.parametrize(("name", "kind", "surrounding"), DRAWS)
def test_the_reason_is_that_of_the_exit_status(
    name: str,
    kind: str,
    surrounding: str,
    listener: Sessions,
    settled: list[tuple[str | None, int | None]],
    tmp_path: Path,
    fake_torch: Path,
) -> None:
    way = WAYS[name]
    code = exit_code(tmp_path, kind, program(kind, way, surrounding), fake_torch)
    hidden = kind.startswith("multiprocessing") and not way.handled and way.cause == "out_of_memory"
    truth = way.cause if way.cause and not hidden else by_code(code)
    session = the_end(listener)
    assert session.end_reason == truth
    ((bye, status),) = settled
    if status not in {None, ends.RUNNING}:
        assert (ends.exit_code(session.end_status), ends.signal_number(session.end_status)) == (
            ("", str(-code)) if code < 0 else (str(code), "")
        )
    if bye is not None:
        assert session.snap is not None
        assert session.snap.steps is not None
        assert session.snap.steps.count == 2
    # Without the kernel: a process may not know its reason, but reports no wrong one.
    assert ends.reason(bye, None) in ({truth} if way.known else {truth, "other", "killed"})


def test_errors_of_too_little_memory(run: Run, fake_torch: Path) -> None:
    texts = [*(f"{kind} error: out of memory" for kind in ("CUDA", "HIP")), "DefaultCPUAllocator: no", "CUDA error: no"]
    reasons = f"[by_error(RuntimeError, RuntimeError(text)) for text in {texts}]"
    program = f"import torch\nfrom gpugauge.hook.ends import by_error\nprint({reasons})"
    assert finished(run(program, PYTHONPATH=str(fake_torch))) == f"{['out_of_memory'] * 3 + ['error']}\n"


def test_the_wrapped_functions_act_as_before(run: Run, fake_torch: Path) -> None:
    program = """
        import inspect, os, pickle, sys
        before = sys.exit, os._exit, os.execv, os.execve
        import torch
        torch.Optimizer().step()
        for function, old in zip((sys.exit, os._exit, os.execv, os.execve), before):
            assert function is not old
            assert pickle.loads(pickle.dumps(function)) is function
            assert (function.__name__, function.__doc__) == (old.__name__, old.__doc__)
            assert inspect.signature(function) == inspect.signature(old)
        for wrong in (lambda: sys.exit(1, 2), lambda: os._exit(), lambda: os._exit("3"), lambda: os.execv("x")):
            try:
                wrong()
            except TypeError:
                continue
            raise AssertionError
        for status in (None, 0, 3, "text", (1, 2), 1 << 100, object):
            try:
                sys.exit(status)
            except SystemExit as error:
                assert error.code == status
        os._exit(status=0)
    """
    assert finished(run(program, PYTHONPATH=str(fake_torch))) == ""


def test_a_child_that_does_not_train_reports_nothing(listener: Sessions, run: Run, fake_torch: Path) -> None:
    program = """
        import os, sys, torch
        optimizer = torch.Optimizer()
        optimizer.step()
        for leave in (os._exit, sys.exit, lambda _: os.execv("/bin/true", ["true"])):
            child = os.fork()
            if not child:
                leave(0)
            assert os.waitpid(child, 0)[1] == 0
        optimizer.step()
    """
    finished(run(program, PYTHONPATH=str(fake_torch)))
    session = the_end(listener)
    assert session.end_reason == "finished"
    assert session.snap is not None
    assert session.snap.steps is not None
    assert session.snap.steps.count == 2


def test_the_globals_of_the_program_are_destroyed_in_the_same_order(run: Run, fake_torch: Path) -> None:
    program = """
        import torch
        class Last:
            def __init__(self, name):
                self.name = name
            def __del__(self, print=print):
                print(self.name, torch is None)
        def user():
            return first, second
        first, second, optimizer = Last("first"), Last("second"), torch.Optimizer()
        optimizer.step()
    """
    watched, plain = (finished(run(program, PYTHONPATH=str(fake_torch), GPUGAUGE_HOOK=hook)) for hook in "10")
    assert watched == plain != ""


TRAIN = """
    import os, time, torch, torch.multiprocessing

    def train(rank, ways):
        weight = torch.nn.Parameter(torch.ones(3))
        torch.optim.SGD([weight], lr=0.1).step()
        if ways[rank] == "error":
            raise ValueError("planted")
        if ways[rank] == "memory":
            torch.empty(1 << 50)
        if ways[rank] == "wait":
            time.sleep(60)
"""


def reasons(listener: Sessions, count: int) -> list[str]:
    until(lambda: [bool(s.end_reason) for s in listener.view()] == [True] * count)
    return sorted(session.end_reason for session in listener.view())


@pytest.mark.everything
@pytest.mark.torch
def test_the_ends_of_spawned_processes(listener: Sessions, run: Run) -> None:
    program = (
        TRAIN
        + """
    if __name__ == "__main__":
        spawn = torch.multiprocessing.spawn
        for context in [spawn(train, args=([way],), join=False) for way in ("return", "error", "memory")]:
            try:
                context.join()
            except torch.multiprocessing.ProcessRaisedException as error:
                print("DefaultCPUAllocator" in str(error))
    """
    )
    assert run(program).communicate(timeout=110)[0] == "False\nTrue\n"
    assert reasons(listener, 3) == ["error", "finished", "out_of_memory"]


@pytest.mark.everything
@pytest.mark.torch
def test_the_ends_under_the_elastic_agent(listener: Sessions, run: Run) -> None:
    # The agent ends the other rank with SIGTERM.
    program = TRAIN + "    train(int(os.environ['RANK']), ['wait', 'error'])\n"
    agent = run(program, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    agent.communicate(timeout=110)
    assert agent.returncode == 1
    assert reasons(listener, 2) == ["error", "killed"]
