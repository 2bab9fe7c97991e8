"""The start of a session against the clock of the kernel: programs lie about the time."""

import os
import subprocess
import sys
import time

import pytest

from gpugauge.sessions.started import checked_start


def test_a_claim_between_start_and_now_is_kept() -> None:
    now = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(0.1)
        assert checked_start(now + 0.05, process.pid) == now + 0.05
        process.kill()


@pytest.mark.parametrize("lie", [-2 * 86400.0, -3600.0, -5.0, 5.0, 86400.0, -1e12, 1e12])
def test_a_claim_outside_is_replaced_by_the_start_of_the_process(lie: float) -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after = time.time()  # on a busy machine this is late
        time.sleep(0.3)
        found = checked_start(time.time() + lie, process.pid)
        process.kill()

    assert found is not None
    assert before - 0.1 < found < after + 0.1


@pytest.mark.parametrize("pid", [0, 2**30])
def test_a_process_that_proc_does_not_show(pid: int) -> None:
    """It may have connected again, so that a claim in the past is possible."""
    now = time.time()

    assert checked_start(now - 3600, pid) == now - 3600
    assert checked_start(now + 3600, pid) == pytest.approx(now, abs=1)


@pytest.mark.parametrize("claim", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_numbers_that_are_no_time(claim: float) -> None:
    found = checked_start(claim, os.getpid())

    assert found is not None
    assert 0 < found <= time.time() + 1


def test_no_claim() -> None:
    assert checked_start(None, os.getpid()) is None
