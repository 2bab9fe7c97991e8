"""A training whose memory the kernel limits: a real cgroup, and the real end of its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.documents import ROOT
from tests.needs import require
from tests.sessions.hooks import ONE, TWO, started, until

from qa.torture.users.groups import Limited

pytestmark = pytest.mark.deploy

PROGRAM = """
import socket, sys, time
from tests.sessions.hooks import hello
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
connection.send(hello(sys.argv[2]))
held = []
while sys.argv[3] == "grows":
    held.append(bytearray(1 << 20))
time.sleep(60)
"""


def test_the_end_of_a_training_that_the_kernel_has_killed(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "must run as root")
    group = Limited(f"gpugauge-{os.getpid()}", 120 << 20, 64)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with started(tmp_path / "hook.sock") as listener:

            def begin(session: str, what: str) -> subprocess.Popen[bytes]:
                command = [sys.executable, "-c", PROGRAM, str(listener.path), session, what]
                processes.append(subprocess.Popen(group.join(command), cwd=ROOT))
                return processes[-1]

            def reasons() -> dict[str, str]:
                return {each.hello.session: each.end_reason for each in listener.view()}

            other = begin(TWO, "rests")
            until(lambda: reasons() == {TWO: ""})
            assert begin(ONE, "grows").wait(60) == -signal.SIGKILL
            until(lambda: reasons() == {ONE: "oom_killed", TWO: ""})
            other.kill()  # as the launcher of both does
            until(lambda: reasons() == {ONE: "oom_killed", TWO: "killed"})
    finally:
        for process in processes:
            process.kill()
            process.wait(20)
        group.close()
