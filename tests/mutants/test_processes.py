"""Forked children."""

from __future__ import annotations

import os
import time

from tests.mutants.processes import CRASHED, TIMED_OUT, Task, forked


def test_children_answer_crash_or_exceed_their_time() -> None:
    def sleep() -> None:
        time.sleep(60)

    tasks = [
        Task("answer", lambda: ["x"] * 100_000, 60),
        Task("crash", lambda: os.kill(os.getpid(), 9), 60),
        Task("late", sleep, 0.2),
    ]
    found = dict(forked(tasks, 2))

    assert found == {"answer": ["x"] * 100_000, "crash": CRASHED, "late": TIMED_OUT}
