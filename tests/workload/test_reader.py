from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from qa.worlds.trees import ID, UID, Made, proc, v1, v2

from gpugauge.workload.identity import Workload
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.reader import KernelFacts, Reader
from gpugauge.workload.users import Users

START = 5000
USER = "/user.slice/user-1000.slice"


class Names(Users):
    """Users without a user database."""

    def name(self, uid: int) -> str:
        return {1000: "alice", 64000: "slurm"}.get(uid) or self.number(uid)


def reader(made: Made) -> Reader:
    return Reader(Procfs(str(made.root)), Names(known=True))


def read(made: Made, pid: int = 41) -> KernelFacts:
    facts = reader(made).read(pid, START)
    assert facts is not None
    return facts


def test_kinds(tmp_path: Path) -> None:
    made = proc(tmp_path)
    for cgroup, uid, expected in (
        (v2(f"{USER}/session-3.scope"), 1000, Workload("user", user="alice")),
        (v2("/system.slice/train.service"), 1000, Workload("systemd", job_id="train.service", user="alice")),
        (v2("/system.slice/slurmstepd.scope/job_7/step_0"), 1000, Workload("slurm", job_id="7", user="alice")),
        (v1("/slurm/uid_1000/job_7/step_0", "/system.slice/slurmd.service"), 1000, Workload("slurm", job_id="7")),
        (v1(f"/docker/{ID}"), 1000, Workload("container", container=ID[:12], user="1000")),
        (v2(f"/system.slice/docker-{ID}.scope"), 0, Workload("container", container=ID[:12], user="root")),
        (v2(f"{USER}/user@1000.service/user.slice/libpod-{ID}.scope"), 100999, Workload("container", user="alice")),
        (v2(f"/kubepods/pod{UID}/{ID}"), 1000, Workload("pod", job_id=UID, user="1000")),
        (v2(f"/kubepods/pod{UID}/{ID}/slurmstepd.scope/job_7/step_0"), 1000, Workload("slurm", job_id="7")),
        (v2("/"), 2000, Workload(user="2000")),
    ):
        made.process(41, cgroup=cgroup, uid=uid)
        workload = read(made).workload

        assert (workload.kind, workload.job_id, workload.command) == (expected.kind, expected.job_id, "train.py")
        assert expected.user in {"", workload.user}, cgroup
        assert expected.container in {"", workload.container}, cgroup


def test_facts_of_a_pod(tmp_path: Path) -> None:
    made = proc(tmp_path)
    environ = {"HOSTNAME": "trainer-0", "WANDB_RUN_ID": "abc", "TOKEN": "s3cret"}
    made.process(41, cgroup=v2(f"/kubepods/pod{UID}/{ID}"), environ=environ, container_pid=1)

    facts = read(made)
    assert facts.workload == Workload("pod", job_id=UID, user="1000", command="train.py", run_id="wandb:abc")
    assert (facts.container_pid, facts.job.environment["HOSTNAME"], facts.user) == (1, "trainer-0", None)
    assert (facts.job.pod_uid, facts.job.container_id, facts.job.user) == (UID, ID, "1000")
    assert "TOKEN" not in facts.job.environment


def test_job_of_the_environment_where_slurm_has_no_cgroups(tmp_path: Path) -> None:
    """The kind is the kernel's word."""
    made = proc(tmp_path)
    made.process(43, cgroup=v2(f"/kubepods/pod{UID}/{ID}"), environ={"SLURM_JOB_ID": "9"})
    made.process(41, cgroup=v2("/system.slice/slurmd.service"), environ={"SLURM_JOB_ID": "9"})
    made.process(42, cgroup=v2("/system.slice/slurmstepd.scope/job_7/step_0"), environ={"SLURM_JOB_ID": "9"})

    found = [read(made, pid).workload for pid in (41, 42, 43)]
    assert [(w.kind, w.job_id) for w in found] == [("systemd", "9"), ("slurm", "7"), ("pod", UID)]


def test_a_container_with_a_system_of_its_own(tmp_path: Path) -> None:
    made = proc(tmp_path)
    made.process(41, cgroup=v2("/lxc.payload.c1/system.slice/train.service"), uid=101000)

    facts = read(made)
    assert facts.workload == Workload("container", container="c1", user="101000", command="train.py")
    assert (facts.job.unit, facts.job.container_id, facts.job.launch[:9]) == ("", "", "train.py-")


def test_a_python_program_with_the_name_of_a_display_server_is_none(tmp_path: Path) -> None:
    made = proc(tmp_path)
    for pid, argv in enumerate((["/usr/lib/xorg/Xorg", ":0"], ["python3", "-m", "river"], ["/usr/bin/river"]), 41):
        made.process(pid, argv)

    assert [read(made, pid).job.display for pid in (41, 42, 43)] == [True, False, True]


def test_a_user_cannot_have_the_compose_service_of_another(tmp_path: Path) -> None:
    """Below the own slice, a user can make a cgroup with the id of any container."""
    made = proc(tmp_path / "proc")
    made.process(41, cgroup=v2(f"{USER}/user@1000.service/libpod-{ID}.scope"))
    made.process(42, cgroup=v2(f"/system.slice/docker-{ID}.scope"))
    (tmp_path / ID).mkdir()
    labels = {"com.docker.compose.project": "shop", "com.docker.compose.service": "trainer"}
    (tmp_path / ID / "config.v2.json").write_text(json.dumps({"Config": {"Labels": labels}}))
    ours = Reader(Procfs(str(made.root)), Names(known=True), tmp_path)
    found = [ours.read(pid, START) for pid in (41, 42)]

    assert [(facts.job.compose, facts.job.rootless) for facts in found if facts] == [
        ("", True),
        ("shop/trainer", False),
    ]


def test_helpers_of_multiprocessing_have_the_name_of_their_program(tmp_path: Path) -> None:
    made = proc(tmp_path)
    spawn = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(7)", "--multiprocessing-fork")
    server = ("python3", "-c", "from multiprocessing.forkserver import main; main(3)")
    made.process(41, ["python3", "train.py", "s3cret"])
    made.process(42, spawn, parent=41)
    made.process(43, server, parent=41)
    made.process(44, server, parent=43)
    made.process(45, spawn, parent=1)
    made.process(46, ["bash"])
    made.process(47, spawn, parent=46)
    made.process(48, spawn, parent=999)

    names = [read(made, pid).workload.command for pid in range(42, 49)]
    assert names == ["train.py", "train.py", "train.py", "python3", "bash", "python3", "python3"]


def test_process_without_a_command_line_has_its_kernel_name(tmp_path: Path) -> None:
    made = proc(tmp_path)
    made.process(41, [], comm="nv queue")

    assert read(made).workload.command == "nv queue"


def test_hostile_names_are_cleaned_and_counted(tmp_path: Path) -> None:
    made = proc(tmp_path)
    made.process(41, [b"./\x1b]0;evil\x07\n" + b"x" * 5000, b"-q"], environ={"WANDB_RUN_ID": 'a"\n\x1b[2J'})
    made.process(42, [b"\xff\xfe"])
    made.process(43, ["ok"])
    ours = reader(made)
    found = [ours.read(pid, START) for pid in (41, 42, 43)]
    workloads = [facts.workload for facts in found if facts]

    assert [w.command for w in workloads] == ["?]0;evil??" + "x" * 118, "\ufffd\ufffd", "ok"]
    assert workloads[0].run_id == 'wandb:a"??[2J'
    assert ours.labels_cleaned == 3


def test_ended_process_and_reused_pid_have_no_facts(tmp_path: Path) -> None:
    made = proc(tmp_path)
    made.process(41, start=START + 1)

    assert reader(made).read(41, START) is None
    assert reader(made).read(42, START) is None


def test_missing_file_affects_its_own_labels_only(tmp_path: Path) -> None:
    made = proc(tmp_path)
    for pid, name in enumerate(("cgroup", "environ", "cmdline"), 41):
        made.process(pid, cgroup=v2("/system.slice/a.service"), environ={"WANDB_RUN_ID": "x"})
        (tmp_path / str(pid) / name).unlink()
        ours = reader(made)
        facts = ours.read(pid, START)

        assert facts is not None
        w = facts.workload
        missing = {"cgroup": w.job_id + w.kind, "environ": w.run_id, "cmdline": w.command.removeprefix("python3")}
        assert {key for key, value in missing.items() if not value} == {name}
        assert ours.sources["cgroup"].up is (name != "cgroup")


class Guarded(Procfs):
    """Refuses to read the environment of some processes, as the kernel does without CAP_SYS_PTRACE."""

    refused: frozenset[int] = frozenset()

    def read(self, pid: int, name: str, limit: int = 65536) -> bytes:
        if name == "environ" and pid in self.refused:
            raise PermissionError
        return super().read(pid, name, limit)


def test_permission_to_read_environments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = proc(tmp_path)
    made.process(41, uid=os.geteuid())
    made.process(42, uid=os.geteuid() + 1)
    made.process(43, uid=os.geteuid() + 1)
    procfs = Guarded(str(tmp_path))
    procfs.refused = frozenset({42, 43})
    ours = Reader(procfs, Names(known=True))
    states = []
    for pid in (41, 42, 41, 43):
        assert ours.read(pid, START) is not None
        states.append(ours.sources["environ"].up)
    procfs.refused = frozenset({42})
    for pid in (43, 42):
        assert ours.read(pid, START) is not None
        states.append(ours.sources["environ"].up)

    assert states == [True, False, False, False, True, True]
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
