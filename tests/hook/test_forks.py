"""A program in a fork sees what it sees in an interpreter of its own."""

from __future__ import annotations

import re
import signal

import pytest

from .conftest import Run, RunFork

pytestmark = pytest.mark.torch

PROGRAM = """
    import atexit, os, sys
    atexit.register(print, "at exit")
    def loaded():
        return sorted(name for name in sys.modules if name.split(".")[0] == "torch")
    print(loaded(), type(sys.meta_path[0]).__name__)
    print(sys.path[1:], sys.path[0] == os.path.dirname(sys.argv[0]), sys.argv[1:], sys.flags, os.environ["OF_THE_TEST"])
    print(__name__, __spec__, sys._getframe().f_back, input())
    print([os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in (0, 1, 2)], len(os.listdir("/proc/self/fd")))
    import torch, torch.fx
    print(loaded(), torch.__spec__.origin)
    import torch._dynamo
    print(loaded(), torch._dynamo.__spec__.origin)
    from gpugauge.hook import install
    print(install.observer.state.compilations)
    def last():
        raise ValueError("planted")
    last()
"""


@pytest.mark.everything
def test_a_fork_is_like_an_interpreter_of_its_own(run: Run, fork: RunFork) -> None:
    programs = [start(PROGRAM, arguments=("a", "b"), OF_THE_TEST="yes") for start in (run, fork)]
    (output, errors), (of_fork, errors_of_fork) = (program.communicate("given\n") for program in programs)
    assert of_fork == output
    assert re.sub(r'File ".*"', "", errors_of_fork) == re.sub(r'File ".*"', "", errors)
    assert [program.returncode for program in programs] == [1, 1]
    assert output.startswith("[] Finder")


def test_a_fork_ends_by_a_signal(fork: RunFork) -> None:
    process = fork("import time; print('started', flush=True); time.sleep(600)")
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
