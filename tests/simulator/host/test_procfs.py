from __future__ import annotations

import os
from pathlib import Path

from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.workload.procfs import Procfs
from tests.simulator.build import scenario

TEXT = """
gpus: {model: h100}
processes:
  - pid: 41
    gpus: [0]
    start: -100
    end: 50
    uid: 2001
    command: /usr/bin/python3 "my train.py" --epochs 3
    container_pid: 1
    cgroup: /docker/abc
    environment: {RANK: "0", HOME: /root}
  - {pid: 42, gpus: [0], start: 20}
"""


def tree(root: Path, *seconds: float) -> None:
    made = scenario(TEXT)
    shown = ProcTree(root, made)
    for second in seconds:
        shown.update(made.simulation()["start"]["monotonic"] + second)


def pids(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.isdigit())


def test_processes_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    tree(tmp_path / "a", 0)
    tree(tmp_path / "b", 0, 30, 60)

    assert pids(tmp_path / "a") == ["41"]
    assert pids(tmp_path / "b") == ["42"]


def test_files_of_a_process(tmp_path: Path) -> None:
    tree(tmp_path, 0)
    folder = tmp_path / "41"

    assert (folder / "comm").read_text() == "python3\n"
    assert (folder / "cmdline").read_bytes() == b"/usr/bin/python3\0my train.py\0--epochs\x003\0"
    assert (folder / "environ").read_bytes() == b"RANK=0\0HOME=/root\0"
    assert (folder / "cgroup").read_text() == "0::/docker/abc\n"
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    assert (status["Name"], status["Uid"], status["NSpid"]) == ("python3", "2001\t2001\t2001\t2001", "41\t1")


def test_the_machine_has_a_name(tmp_path: Path) -> None:
    for given, expected in (("", "test"), ("host: slurm-7", "slurm-7")):
        ProcTree(tmp_path / expected, scenario(f"{given}\n{TEXT}")).update(0)

        assert (tmp_path / expected / "sys/kernel/hostname").read_text() == f"{expected}\n"


def test_our_own_reader_reads_it(tmp_path: Path) -> None:
    tree(tmp_path, 30)
    procfs = Procfs(str(tmp_path))
    first, second = procfs.start_time(41), procfs.start_time(42)

    assert len(procfs.boot_id) == 36
    assert first is not None
    assert second is not None
    assert second - first == 120 * os.sysconf("SC_CLK_TCK")


def test_identity_survives_another_start(tmp_path: Path) -> None:
    identities = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tree(tmp_path / name, 0)
        identities.append(Procfs(str(tmp_path / name)).process_id(41))

    assert identities[0] == identities[1] is not None
