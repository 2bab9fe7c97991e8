"""The start of a session against the clock of the kernel: programs lie about the time."""

import os
import subprocess
import sys
import time

import pytest

from gpugauge.sessions.started import checked_start


def test_a_claim_is_kept_between_the_start_of_the_process_and_now_and_otherwise_replaced() -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after = time.time()  # on a busy machine this is late
        time.sleep(0.3)  # a claim of now lies well behind the start, which the kernel states in hundredths of a second
        now = time.time()
        lies = (-2 * 86400.0, -3600.0, -5.0, 5.0, 86400.0, -1e12, 1e12)
        kept, found = checked_start(now, process.pid), [checked_start(time.time() + lie, process.pid) for lie in lies]
        process.kill()

    assert kept == now
    assert [start for start in found if start is None or not before - 0.1 < start < after + 0.1] == []


def test_a_process_that_proc_does_not_show() -> None:
    """It may have connected again, so that a claim in the past is possible."""
    now = time.time()

    for pid in (0, 2**30):
        assert checked_start(now - 3600, pid) == now - 3600
        assert checked_start(now + 3600, pid) == pytest.approx(now, abs=1)


def test_claims_that_are_no_time() -> None:
    for claim in (float("nan"), float("inf"), float("-inf"), -1.0):
        found = checked_start(claim, os.getpid())
        assert found is not None
        assert 0 < found <= time.time() + 1
    assert checked_start(None, os.getpid()) is None
