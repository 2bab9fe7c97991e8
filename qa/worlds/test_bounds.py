"""What a process can make as large as it likes costs the daemon little: its files in /proc, and what its NCCL says."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import cases

from gpugauge.workload import processfiles, ras
from gpugauge.workload.procfs import Procfs
from qa.worlds.trees import proc

MIB = 1 << 20
PID = 41


class Endless:
    """A connection to a NCCL whose answer has no end."""

    def settimeout(self, _: float) -> None: ...

    def recv(self, size: int) -> bytes:
        return bytes(size)


def most_memory(read: Callable[[], Any]) -> int:
    """Return the most memory that a call takes, in bytes."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@cases(
    ("file", "read", "most"),
    [
        ("maps", processfiles.torch_build, 25 * MIB),  # of a process with all of CUDA they have some MiB
        ("environ", processfiles.visible_devices, 4 * MIB),
        ("environ", processfiles.starts_hook, 4 * MIB),
        ("status", processfiles.bounds, 1 * MIB),
        ("io", processfiles.io_bytes, 1 * MIB),
        ("statm", processfiles.anonymous_bytes, 1 * MIB),
        ("cmdline", Procfs.argv, 1 * MIB),
        ("comm", Procfs.comm, 1 * MIB),
        ("stat", Procfs.stat, 1 * MIB),
        ("status", Procfs.status, 1 * MIB),
    ],
)
def test_a_file_without_an_end(
    file: str, read: Callable[[Procfs, int], Any], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = proc(tmp_path)
    made.process(PID)
    (made.root / str(PID) / file).unlink(missing_ok=True)
    (made.root / str(PID) / file).symlink_to("/dev/zero")
    procfs = Procfs(str(made.root))
    # In this thread: an idle one that has read is not traced.
    monkeypatch.setattr(procfs._in_time, "read", lambda work, _: work())
    assert most_memory(partial(read, procfs, PID)) < most


def test_an_answer_of_nccl_without_an_end() -> None:
    endless = Endless()
    assert most_memory(lambda: ras._receive(endless, 1e12, ras._MAX_BYTES)) < 20 * MIB  # type: ignore[arg-type]  # a double
    with pytest.raises(ValueError, match="no whole answer"):
        ras._communicators(b"{" + b" " * (8 * MIB) + b"}")


def test_what_needs_a_lock_of_the_process_is_read_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its memory, or of the replacement of its program: proc_pid_*(5) take it while they are read."""
    made, read = proc(tmp_path), list[str]()
    made.process(PID)
    procfs = Procfs(str(made.root))
    monkeypatch.setattr(procfs._in_time, "read", lambda work, _: read.append(file) or work())
    every = ("stat", "status", "statm", "comm", "cgroup", "cmdline", "environ", "maps", "io")
    for file in every:
        (made.root / str(PID) / file).write_bytes(b"x")
        assert procfs.content(PID, file) == procfs.read_once(PID, file) == b"x"
    assert [*dict.fromkeys(read)] == ["cmdline", "environ", "maps", "io"]


def test_nccl_listens_at_its_own_port_unless_the_process_says_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of src/ras/ras.cc: a process without the variable has it."""
    made, asked, network = proc(tmp_path), list[int](), Path("/proc/self/ns/net").readlink().name[5:-1]
    monkeypatch.setattr(ras, "_listeners", lambda port, _: asked.append(port) or ())
    hosts = {}
    for pid, environ in (
        (41, {}),
        (42, {"NCCL_RAS_ADDR": "localhost:7000"}),
        (43, {"XNCCL_RAS_ADDR": "localhost:7001"}),
    ):
        made.process(pid, network=network, environ=environ)
        stat = Procfs(str(made.root)).stat(pid)
        assert stat
        hosts[str(pid)] = processfiles.HostProcess(str(pid), pid, stat)
    ras.inquire(Procfs(str(made.root)), [*hosts], hosts)
    assert asked == [28028, 7000]
