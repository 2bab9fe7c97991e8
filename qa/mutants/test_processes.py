"""Forked children."""

from __future__ import annotations

import os
import time
from pathlib import Path

from qa.mutants.processes import CRASHED, TIMED_OUT, Task, forked


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


def test_each_child_has_a_temporary_folder_of_pytest_which_is_removed() -> None:
    def folder() -> str:
        path = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])
        (path / "left").touch()
        return str(path)

    folders = [path for _, path in forked([Task(number, folder, 60) for number in range(3)], 3)]

    assert len(set(folders)) == 3
    assert not any(map(os.path.exists, folders))
