from __future__ import annotations

import os
from pathlib import Path

from qa.worlds.trees import proc

from gpugauge.workload.procfs import Procfs, Status


def test_process_identity_depends_on_pid_and_start(tmp_path: Path) -> None:
    made = proc(tmp_path)
    procfs = Procfs(str(tmp_path))
    made.process(41, start=5000, comm="a) b (c")
    first = procfs.process_id(41)
    made.process(41, start=5001)
    second = procfs.process_id(41)

    assert first is not None
    assert second is not None
    assert first != second
    assert len(first) == 12


def test_no_such_process(tmp_path: Path) -> None:
    proc(tmp_path)
    procfs = Procfs(str(tmp_path))

    assert [found(pid) for pid in (42, 0, -1) for found in (procfs.process_id, procfs.status)] == [None] * 6


def test_status(tmp_path: Path) -> None:
    made = proc(tmp_path)
    made.process(41, uid=2001, parent=7)
    made.process(42, container_pid=3)
    procfs = Procfs(str(tmp_path))

    assert procfs.status(41) == Status(uid=2001, parent=7, container_pid=None)
    assert procfs.status(42) == Status(uid=1000, parent=1, container_pid=3)


def test_broken_files(tmp_path: Path) -> None:
    proc(tmp_path).process(41, ["x" * 100])
    procfs = Procfs(str(tmp_path))
    for content in ("", "Uid:\t\nPPid:\t1\n", "Uid:\tx\nPPid:\t1\n", "Uid:\t1\n"):
        (tmp_path / "41/status").write_text(content)
        assert procfs.status(41) is None, content
    (tmp_path / "41/stat").write_text("41 (python3) S 1")

    assert procfs.start_time(41) is None
    assert procfs.read(41, "cmdline", limit=10) == b"x" * 10


def test_own_process() -> None:
    procfs = Procfs()
    status = procfs.status(os.getpid())

    assert status is not None
    assert (status.uid, status.parent) == (os.getuid(), os.getppid())
    assert procfs.process_id(os.getpid()) == procfs.process_id(os.getpid()) is not None
