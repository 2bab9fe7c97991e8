"""What a process can make as large as it likes costs the daemon little: its files in /proc, and what its NCCL says."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import cases, seeds

from gpugauge.workload import environ, processfiles, ras
from gpugauge.workload.intime import ProcessOwner
from gpugauge.workload.launch import launch_of
from gpugauge.workload.orchestrators import read_jobs
from gpugauge.workload.podinfo import compose_service
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.users import Users
from qa.worlds.trees import proc, v2

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
        ("status", processfiles.bounds, 4 * MIB),
        ("io", processfiles.io_bytes, 4 * MIB),
        ("statm", processfiles.anonymous_bytes, 4 * MIB),
        ("cmdline", Procfs.argv, 4 * MIB),
        ("comm", Procfs.comm, 4 * MIB),
        ("stat", Procfs.stat, 4 * MIB),
        ("status", Procfs.status, 4 * MIB),
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

    def in_time(work: Callable[[], bytes], _: object) -> bytes:
        read.append(file)
        return work()

    monkeypatch.setattr(procfs._in_time, "read", in_time)
    file, every = "", ("stat", "status", "statm", "comm", "cgroup", "cmdline", "environ", "maps", "io")
    for file in every:
        (made.root / str(PID) / file).write_bytes(b"x")
        assert procfs.content(PID, file) == procfs.read_once(PID, file) == b"x"
    assert [*dict.fromkeys(read)] == ["cmdline", "environ", "maps", "io"]


def test_nccl_listens_at_its_own_port_unless_the_process_says_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of src/ras/ras.cc: a process without the variable has it."""
    made, asked, network = proc(tmp_path), list[int](), Path("/proc/self/ns/net").readlink().name[5:-1]
    monkeypatch.setattr(ras, "_listeners", lambda port, _: map(asked.append, [port]))
    monkeypatch.setattr(ras, "_ask", lambda *_: b"")
    hosts = {}
    for pid, variables in (
        (41, {}),
        (42, {"NCCL_RAS_ADDR": "localhost:7000"}),
        (43, {"XNCCL_RAS_ADDR": "localhost:7001"}),
    ):
        made.process(pid, network=network, environ=variables)
        stat = Procfs(str(made.root)).stat(pid)
        assert stat
        hosts[str(pid)] = processfiles.HostProcess(str(pid), pid, stat)
    ras.inquire(Procfs(str(made.root)), [*hosts], hosts)
    assert asked == [28028, 7000]


@seeds(range(40))
def test_the_launch_of_a_deep_tree_and_of_a_long_name(seed: int, tmp_path: Path) -> None:
    """It is found among 32 ancestors, and is shown with 40 characters of its program."""
    dice, made = random.Random(seed), proc(tmp_path)
    depth, name = dice.randint(1, 50), "a" * dice.randint(1, 80)
    for pid in range(100, 100 + depth):
        made.process(pid, [f"/bin/{pid}{name}"], parent=pid - 1 if pid > 100 else 1)
    last = 100 + depth - 1
    program, _, digits = launch_of(Procfs(str(made.root)), last, 1000).name.rpartition("-")
    assert program == f"{max(100, last - 32)}{name}"[:40]
    assert len(digits) == 8


@seeds(range(40))
def test_the_files_of_a_prolog_are_read_in_part(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    jobs, files, padding = dice.choice((1, 63, 64, 65, 200)), dice.choice((1, 3)), " " * dice.choice((0, 1000))
    for file in range(files):
        text = "".join(f"{1000 + job}{padding}\n" for job in range(jobs))
        (tmp_path / f"nvidia{file}").write_text(text)
    found = read_jobs(tmp_path, str).devices
    whole = min(jobs, 64, 65536 // (5 + len(padding)) + (1 if padding else 0))
    assert {name: len(held) for name, held in found.items()} == {f"nvidia{file}": whole for file in range(files)}


def test_many_files_of_a_prolog_are_not_all_read(tmp_path: Path) -> None:
    for file in range(1100):
        (tmp_path / f"nvidia{file}").write_text("7\n")
    assert len(read_jobs(tmp_path, str).devices) == 1024


@cases(("size", "found"), [(0, "a/b"), (900_000, "a/b"), (1_100_000, "")])
def test_the_file_of_a_container_is_read_up_to_a_mebibyte(size: int, found: str, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    labels = {"com.docker.compose.project": "a", "com.docker.compose.service": "b"}
    text = json.dumps({"Config": {"Labels": labels, "Image": "x" * size}})
    (tmp_path / "c/config.v2.json").write_text(text)
    assert compose_service(tmp_path, "c") == found


@cases("size", [1, 511, 512, 513, 5000])
def test_a_variable_and_the_name_of_a_machine_are_cut(size: int, tmp_path: Path) -> None:
    made = proc(tmp_path)
    (made.root / "sys/kernel").mkdir(parents=True, exist_ok=True)
    (made.root / "sys/kernel/hostname").write_text("h" * size)
    assert len(environ.parse(b"SLURM_JOB_ID=" + b"7" * size + b"\0")["SLURM_JOB_ID"]) == min(size, 512)
    assert Procfs(str(made.root)).host()[:-7] == "h" * min(size, 48)


def test_names_of_many_users_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name=f"user{uid}"))
    users = Users(known=True)
    for uid in range(1, 4100):
        users._look_up(uid)
        assert users.is_known(uid)
        assert len(users._names) == min(uid, 4096)
    assert [users.is_known(uid) for uid in (1, 3, 4)] == [False, False, True]


def test_the_time_since_boot_is_that_of_the_machine() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = Procfs().uptime()
    assert found is not None
    assert before <= found <= time.clock_gettime(time.CLOCK_BOOTTIME)


@cases(
    ("place", "person"),
    [("/system.slice/a.service", ""), ("/user.slice/user-1000.slice/session-2.scope", "1000"), ("/kubepods/b", "")],
)
def test_whose_reads_are_refused_while_one_hangs(place: str, person: str, tmp_path: Path) -> None:
    """Those of the user in a cgroup; a person may make more cgroups, so that all below the own slice are one."""
    made = proc(tmp_path)
    made.process(PID, cgroup=v2(place), uid=7)
    procfs = Procfs(str(made.root))
    assert procfs._owner(PID) == ProcessOwner(7, person or v2(place))
    assert procfs._owner(PID + 1) == ProcessOwner(-1, "")
