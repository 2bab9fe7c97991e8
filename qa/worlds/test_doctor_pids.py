"""The doctor on pids under which no program runs: real threads, kernel threads and processes that have ended."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from click.testing import CliRunner
from tests.drawn import cases

from gpugauge.cli.doctor import command


@cases(
    ("kind", "words"), [("thread", "a thread of the process"), ("zombie", "(a zombie)"), ("kernel", "of the kernel")]
)
def test_no_program_runs_under_the_pid(kind: str, words: str) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    zombie = os.fork()
    if zombie == 0:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    try:
        # In a container there are no threads of the kernel.
        kernel = "2" if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n" else ""
        pids = {"thread": thread.native_id, "zombie": zombie, "kernel": kernel}
        if not pids[kind]:
            return
        found = CliRunner().invoke(command, [str(pids[kind]), "--url", "http://127.0.0.1:1"])
    finally:
        done.set()
        thread.join()
        os.waitpid(zombie, 0)

    assert words in " ".join(found.output.split())
    assert "start it with the hook" not in found.output
    assert "gpugauge run" not in found.output
    assert found.exit_code == 2
