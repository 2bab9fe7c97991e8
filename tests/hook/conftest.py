"""A listener, programs that run under the hook, and a torch of one file for what no CPU build can show."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpugauge import launch
from gpugauge.sessions import Sessions

FAKE_TORCH = """
import sys, types

def module(name, **attributes):
    result = sys.modules["torch." + name] = types.ModuleType("torch." + name)
    vars(result).update(attributes)
    return result

hooks = []

class Optimizer:
    param_groups = []
    def step(self):
        for hook in hooks:
            hook(self, (), {})

class Iterator:
    def __next__(self):
        return "batch"

def statistics(index):
    # Of two devices this process has used one.
    size = lambda n: {"all": {"current": n * (index == 0), "peak": 10 * n * (index == 0)}}
    return {
        "allocated_bytes": size(1), "reserved_bytes": size(2), "active_bytes": size(3),
        "inactive_split_bytes": size(4), "num_alloc_retries": 5, "num_ooms": 6,
    }

def initialising(*_):
    raise AssertionError("the hook initialised CUDA")

__version__ = "9.9.0+cu129"
__path__ = []
version = module("version", cuda="12.9", hip=None)
compiler = module("compiler", is_dynamo_compiling=lambda: False)
distributed = module("distributed", is_available=lambda: False)
optim = module("optim")
module("optim.optimizer", register_optimizer_step_post_hook=hooks.append)
module("utils")
module("utils.data")
module("utils.data.dataloader", _BaseDataLoaderIter=Iterator)
_C = module("_C", _cuda_isHistoryEnabled=lambda: False)
cuda = module(
    "cuda", is_initialized=lambda: False, is_available=initialising, init=initialising,
    device_count=initialising, memory_stats_as_nested_dict=initialising, get_device_properties=initialising,
)

def use_cuda():
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: 2
    cuda.memory_stats_as_nested_dict = statistics
    cuda.get_device_properties = lambda index: types.SimpleNamespace(uuid="abc-%d" % index)
"""

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """Return a directory for PYTHONPATH that holds the torch of one file."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_TORCH)
    return package.parent


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Sessions]:
    listener = Sessions(str(tmp_path / "hook.sock"))
    listener.start()
    yield listener
    listener.stop()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts a program under the hook, with variables of its own added to the environment."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(textwrap.dedent(program))
        environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONWARNINGS": "ignore", **variables}
        process = subprocess.Popen(
            [sys.executable, *options, str(script)],
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


def finished(process: "subprocess.Popen[str]") -> str:
    """Wait for a program that ends well and says nothing on stderr; return what it printed."""
    output, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (0, "")
    return output


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
