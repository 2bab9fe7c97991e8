"""Fixtures: a listener, programs that run under the hook, and a fake torch for what no CPU build can show."""

import os
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.hook.record import Record
from gpugauge.sessions.listener import Sessions
from gpugauge.wire import record as wire_record

from .forks import SCRIPT, Fork, Server

# Calls that would initialise CUDA are written to a file beside the package: the hook catches all exceptions.
FORBIDDEN = "forbidden-calls"
FAKE_TORCH = """
import os, sys, time, types

def module(name, **attributes):
    result = sys.modules["torch." + name] = types.ModuleType("torch." + name)
    vars(result).update(attributes)
    return result

hooks = []

class Tensor:
    pass

class Optimizer:
    param_groups = []
    state = {}
    def __init__(self):
        pass
    def step(self):
        for hook in hooks:
            hook(self, (), {})

class Iterator:
    takes = 0.0
    def __iter__(self):
        return self
    def __next__(self):
        time.sleep(self.takes)
        return "batch"

class DataLoader:
    starts = 0.0
    def __init__(self):
        pass
    def __iter__(self):
        time.sleep(self.starts)
        return Iterator()

class Event:
    # An event of a device that runs its work in order; work(seconds) queues work.
    busy_until = 0.0
    def __init__(self, enable_timing):
        assert enable_timing
    def record(self):
        assert not cuda.is_current_stream_capturing()
        self.passed = max(time.monotonic(), Event.busy_until)
    def query(self):
        assert not cuda.is_current_stream_capturing()
        return time.monotonic() >= self.passed
    def elapsed_time(self, end):
        assert self.query() and end.query()
        return 1e3 * (end.passed - self.passed)

def work(seconds):
    Event.busy_until = max(time.monotonic(), Event.busy_until) + seconds

def statistics(index):
    # The process has used one of two devices.
    size = lambda n: {"all": {"current": n * (index == 0), "peak": 10 * n * (index == 0)}}
    return {
        "allocated_bytes": size(1), "reserved_bytes": size(2), "active_bytes": size(3),
        "inactive_split_bytes": size(4), "num_alloc_retries": 5, "num_ooms": 6,
    }

def initialising(name):
    def call(*_):
        import traceback
        with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "forbidden-calls"), "a") as file:
            file.write("torch.cuda." + name + "() before the program initialised CUDA:\\n")
            file.write("".join(traceback.format_stack()[:-1]))
        raise AssertionError("the hook initialised CUDA")
    return call

def is_grad_enabled():
    return True

__version__ = "9.9.0+cu129"
__path__ = []
version = module("version", cuda="12.9", hip=None)
compiler = module("compiler", is_dynamo_compiling=lambda: False)
distributed = module("distributed", is_available=lambda: False)
optim = module("optim", Optimizer=Optimizer)
module("optim.optimizer", register_optimizer_step_post_hook=hooks.append)
module("utils")
module("utils.data")
module("utils.data.dataloader", _BaseDataLoaderIter=Iterator, DataLoader=DataLoader)
_C = module(
    "_C", _cuda_isHistoryEnabled=lambda: False, _cuda_getDriverVersion=lambda: 12090,
    _current_graph_task_id=lambda: -1,
)
backends = module("backends")
backends.cudnn = module("backends.cudnn", version=lambda: 91002, allow_tf32=True)
backends.cuda = module("backends.cuda", matmul=types.SimpleNamespace(allow_tf32=False))
FORBIDDEN = (
    "is_available", "init", "device_count", "memory_stats_as_nested_dict", "get_device_properties", "current_device",
    "get_arch_list", "Event", "is_current_stream_capturing",
)
cuda = module("cuda")

def without_cuda():
    # As before the initialisation, and as in a forked child.
    vars(cuda).update({name: initialising(name) for name in FORBIDDEN}, is_initialized=lambda: False)

def use_cuda():
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: 2
    cuda.memory_stats_as_nested_dict = statistics
    cuda.get_device_properties = lambda index: types.SimpleNamespace(
        uuid="abc-%d" % index, name="NVIDIA X", major=9, minor=0, total_memory=1000
    )
    cuda.current_device = lambda: 0
    cuda.get_arch_list = lambda: ["sm_80", "sm_90a", "compute_90"]
    cuda.is_current_stream_capturing = lambda: False
    cuda.Event = Event

without_cuda()
os.register_at_fork(after_in_child=without_cuda)
"""

# Time passes in time.sleep() alone, for the program and for the hook, which takes its clock before it imports torch. It
# is behind that of the machine, whose daemon takes no time from the future.
SIMULATED_TIME = """
import time
from gpugauge.hook import clock
nanoseconds = time.perf_counter_ns() - 10**12
def sleep(seconds):
    global nanoseconds
    nanoseconds += round(1e9 * seconds)
time.sleep, time.perf_counter_ns = sleep, lambda: nanoseconds
time.monotonic = time.perf_counter = lambda: nanoseconds / 1e9
clock.CLOCKS = time.perf_counter_ns, time.time
"""


READ = wire_record.read


def at_its_last_change(data: bytes, _: int, unix: float) -> wire_record.SharedRecord | None:
    """Read the shared record of a program in simulated time as of its last change of phase or its last step. Its
    present is not that of the daemon.
    """
    words = struct.unpack_from(f"={wire_record.WORDS}Q", data, 8)  # after magic and number of phases
    return READ(data, max(words[wire_record.SINCE], words[wire_record.LAST_STEP]), unix)


def simulate_time(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a program, and how a daemon in this process reads its record; see SIMULATED_TIME."""
    script.write_text(SIMULATED_TIME + script.read_text())
    monkeypatch.setattr(wire_record, "read", at_its_last_change)


Run = Callable[..., "subprocess.Popen[str]"]
RunFork = Callable[..., Fork]


@pytest.fixture
def record() -> Iterator[Record]:
    record = Record()
    record.open()
    yield record
    record.close()


@pytest.fixture
def fake_torch(tmp_path: Path) -> Iterator[Path]:
    """Return a directory for PYTHONPATH that has the fake torch. No process may call what would initialise CUDA."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_TORCH)
    yield package.parent
    calls = package.parent / FORBIDDEN
    assert not calls.exists(), calls.read_text()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Sessions]:
    listener = Sessions(str(tmp_path / "hook.sock"))
    listener.start()
    yield listener
    listener.stop()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return a function that starts a program under the hook, with variables of its own added to the environment; see
    SIMULATED_TIME for `simulated`.
    """
    started: list[subprocess.Popen[str]] = []

    def run(
        program: str, *options: str, arguments: tuple[str, ...] = (), simulated: bool = False, **variables: str
    ) -> subprocess.Popen[str]:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(textwrap.dedent(program))
        if simulated:
            simulate_time(script, monkeypatch)
        environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONWARNINGS": "ignore", **variables}
        process = subprocess.Popen(
            [sys.executable, *options, str(script), *arguments],
            env=launch.environment(environ, str(tmp_path / "hook.sock")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the server of programs that train with the real torch. Most import dynamo, with their first step."""
    server = Server(tmp_path_factory.mktemp("forks"), "torch", "torch._dynamo")
    yield server
    server.close()


@pytest.fixture
def fork(tmp_path: Path, forks: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFork]:
    """Return a function that runs a program with the real torch as `run` does, without the seconds of its import."""
    started: list[Fork] = []

    def fork(program: str, arguments: tuple[str, ...] = (), simulated: bool = False, **variables: str) -> Fork:
        folder = tmp_path / f"fork{len(started)}"
        folder.mkdir()
        (folder / SCRIPT).write_text(textwrap.dedent(program))
        if simulated:
            simulate_time(folder / SCRIPT, monkeypatch)
        environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONWARNINGS": "ignore", **variables}
        process = forks.run(folder, arguments, launch.environment(environ, str(tmp_path / "hook.sock")))
        started.append(process)
        return process

    yield fork
    for process in started:
        process.close()


def finished(process: "subprocess.Popen[str] | Fork") -> str:
    """Wait for a program that exits with 0 and writes nothing to stderr; return its output."""
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    return output


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the time limit of the test ends it otherwise, and shows the condition."""
    while not condition():
        time.sleep(0.01)
