from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qa.worlds.trees import ID, OTHER_ID, UID, Made, pod_logs, proc, v2

from gpugauge.workload.controllers import Pod
from gpugauge.workload.identity import Workload
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.registry import DeviceNames, Want
from gpugauge.workload.workloads import Workloads
from tests.needs import give_up
from tests.workload.kubelet import Pods, Service, listing, serving

POD = v2(f"/kubepods/burstable/pod{UID}/{ID}")
NAMED = ("research", "trainer-0")
SHARED: Pods = {
    NAMED: {"main": {"nvidia.com/gpu": ["GPU-1::0"]}, "helper": {"nvidia.com/gpu": ["GPU-2::0"]}},
    ("prod", "server-0"): {"main": {"nvidia.com/gpu": ["GPU-1::1"]}},
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def over(made: Made, **more: Path | Clock | Pod | None) -> Workloads:
    return Workloads(Procfs(str(made.root)), **more)  # type: ignore[arg-type]  # one dict for several


def slurm(job: str) -> Workload:
    return Workload("slurm", job_id=job, job_kind="slurm", job=job, job_source="slurm")


def names(workload: Workload) -> tuple[str, str, str]:
    return workload.namespace, workload.pod, workload.container


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return proc(tmp_path / "proc")


def test_process_is_read_once(made: Made) -> None:
    made.process(41, ["a.out"])
    workloads = over(made)
    first = workloads.resolve(41)
    (made.root / "41/cmdline").write_bytes(b"changed\0")

    assert workloads.resolve(41) is first
    assert workloads.resolve(41, start=5000) is first


def test_pid_reuse(made: Made) -> None:
    made.process(41, ["a.out"])
    workloads = over(made)
    before = workloads.resolve(41).command
    made.process(41, ["b.out"], start=9000)

    assert (before, workloads.resolve(41).command) == ("a.out", "b.out")
    assert workloads.resolve(41, start=5000) == Workload()


def test_no_such_process(made: Made) -> None:
    workloads = over(made)
    for number, pid in enumerate((42, 0, -1, 2**40), 1):
        assert workloads.resolve(pid) == Workload()
        assert workloads.cgroup_directory(pid, "cpu") is None
        assert workloads.counters()["pids_vanished"] == number


def test_pid_in_the_container(made: Made) -> None:
    made.process(41, container_pid=7)
    made.process(42)
    workloads = over(made)

    assert [workloads.identify(Want(pid)).container_pid for pid in (41, 42)] == [7, None]


def test_cache_is_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.workload.workloads._MAX_PROCESSES", 10)
    workloads = over(made)
    for pid in range(1, 31):
        made.process(pid, [f"p{pid}"])
        workloads.resolve(1)
        workloads.resolve(pid)

    assert workloads._cache.keys() == {1, *range(22, 31)}
    assert workloads.resolve(2).command == "p2"


def test_invisible_processes_are_reported_after_a_minute(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    made.process(41)
    workloads = over(made, clock=clock)
    states = []
    for pid, seconds in ((42, 0), (42, 59), (41, 30), (42, 59), (42, 2), (42, 30), (41, 0)):
        clock.now += seconds
        workloads.resolve(pid)
        states.append(workloads.sources().get("procfs"))

    assert states == [None, None, True, True, False, False, True]
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


def test_pod_by_its_log_files(made: Made, tmp_path: Path) -> None:
    made.process(41, cgroup=POD)
    made.process(42, cgroup=v2(f"/kubepods/burstable/pod{UID}/{OTHER_ID}"))
    workloads = over(made, pod_logs=pod_logs(tmp_path / "log", *NAMED, UID, {"main": ID}))
    before = workloads.resolve(41)
    workloads.refresh()

    assert (before.kind, before.job_id, names(before)) == ("pod", UID, ("", "", ""))
    assert names(workloads.resolve(41)) == (*NAMED, "main")
    assert names(workloads.resolve(42)) == (*NAMED, "")
    assert workloads.resolve(41).job_id == UID
    assert workloads.sources()["pod_logs"] is True


def job(workload: Workload) -> tuple[str, str, str, str]:
    return workload.job_kind, workload.job, workload.namespace, workload.job_source


PYTORCHJOB = {"MASTER_ADDR": "trainer-worker-0", "WORLD_SIZE": "4", "HOSTNAME": "trainer-worker-1"}


def test_a_user_whose_name_comes_late(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, str] = {}
    monkeypatch.setattr("gpugauge.workload.users.Users.is_known", lambda _, uid: uid in known)
    monkeypatch.setattr("gpugauge.workload.users.Users.name", lambda _, uid: known.get(uid, str(uid)))
    made.process(41, environ={"GPUGAUGE_JOB": "night"})
    made.process(42, cgroup=v2("/system.slice/slurmstepd.scope/job_7/step_0"))
    workloads = over(made)
    before = job(workloads.resolve(41))
    known[1000] = "ann"

    assert before == ("", "", "", "")
    assert job(workloads.resolve(41)) == ("declared", "ann/night", "", "declared")
    assert job(workloads.resolve(42)) == ("slurm", "7", "", "slurm")


def test_torchrun_restarts_its_ranks_with_another_port(made: Made) -> None:
    environ = {"MASTER_ADDR": "gpu07", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "exp"}
    made.process(40, ["torchrun"])
    made.process(41, parent=40, environ=environ | {"MASTER_PORT": "41001"})
    workloads = over(made)
    first = job(workloads.resolve(41))
    made.process(41, parent=40, start=9000, environ=environ | {"MASTER_PORT": "52002"})
    made.process(50, ["torchrun"])
    made.process(51, parent=50, environ=environ | {"MASTER_PORT": "52002"})

    assert job(workloads.resolve(41)) == first == ("distributed", "1000/exp@gpu07:41001", "", "rendezvous")
    assert job(workloads.resolve(51)) != first


def test_the_ranks_of_one_user_do_not_take_the_job_of_anothers_below_one_process(made: Made) -> None:
    """A program of root that starts those of many users, for example for notebooks."""
    meets = {"MASTER_ADDR": "gpu07", "MASTER_PORT": "29500", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    made.process(40, ["spawner"], uid=0)
    for pid, uid in ((41, 1001), (42, 1002)):
        made.process(pid, parent=40, uid=uid, environ=meets | {"TORCHELASTIC_RUN_ID": "exp"})
    workloads = over(made)

    assert [workloads.resolve(pid).job for pid in (41, 42)] == ["1001/exp@gpu07:29500", "1002/exp@gpu07:29500"]


def test_an_allocation_has_the_job_of_its_processes(made: Made, tmp_path: Path) -> None:
    pods: Pods = {("research", "trainer-worker-1"): {"main": {"nvidia.com/gpu": ["GPU-1"]}}}
    (tmp_path / "0").write_text("71\n")
    made.process(41, cgroup=POD, environ=PYTORCHJOB)
    part = {"SLURM_JOB_ID": "64", "SLURM_JOB_ID_HET_GROUP_0": "64"}
    made.process(42, cgroup=v2("/system.slice/slurmstepd.scope/job_71/step_0"), environ=part)
    logs = pod_logs(tmp_path / "log", "research", "trainer-worker-1", UID, {"main": ID})
    workloads = over(made, kubelet_socket=tmp_path / "s", job_mapping_dir=tmp_path, pod_logs=logs)
    with serving(tmp_path / "s", Service(listing(pods))):
        workloads.refresh()
        before = workloads.allocations()
        resolved = [workloads.resolve(pid) for pid in (41, 42)]
        workloads.refresh()
        resolved = [workloads.resolve(pid) for pid in (41, 42)]
    after = workloads.allocations()

    assert [job(before[name][0]) for name in ("GPU-1", "index:0")] == [
        ("", "", "research", ""),
        ("slurm", "71", "", "slurm"),
    ]
    assert [job(after[name][0]) for name in ("GPU-1", "index:0")] == [job(w) for w in resolved]
    assert [job(w)[:2] for w in resolved] == [("pytorchjob", "trainer"), ("slurm", "1000/64")]


@pytest.mark.parametrize(
    ("proven", "line", "expected"),
    [
        (False, "71\n", ("slurm", "71", "", "slurm")),  # which of the two users has the job is not known
        (False, "71 1001\n", ("slurm", "1001/71", "", "environment")),
        (True, "71\n", ("slurm", "71", "", "slurm")),
        (True, "71 1001\n", ("slurm", "71", "", "slurm")),
    ],
)
def test_an_allocation_does_not_have_the_job_of_a_process_that_claims_it(
    made: Made, tmp_path: Path, proven: bool, line: str, expected: tuple[str, str, str, str]
) -> None:
    (tmp_path / "0").write_text(line)
    made.process(41, environ={"SLURM_JOB_ID": "71"}, uid=1002)
    group = v2("/system.slice/slurmstepd.scope/job_71/step_0" if proven else "/system.slice/slurmd.service")
    made.process(42, cgroup=group, environ={"SLURM_JOB_ID": "71"}, uid=1001)
    workloads = over(made, job_mapping_dir=tmp_path)
    claimed, own = job(workloads.resolve(41)), job(workloads.resolve(42))
    workloads.refresh()

    assert claimed == ("slurm", "1002/71", "", "environment")
    assert own == (("slurm", "71", "", "slurm") if proven else ("slurm", "1001/71", "", "environment"))
    assert job(workloads.allocations()["index:0"][0]) == expected


SIDECAR = Pod("research", "trainer-x7k2p", UID, {"job-name": "trainer"})


def test_every_process_of_a_sidecar_is_in_its_pod(made: Made) -> None:
    """With a shared pid namespace; the cgroup namespace hides the pod's part of the path."""
    made.process(41, cgroup=v2(f"/../cri-containerd-{ID}.scope"))
    workload = over(made, own_pod=SIDECAR).resolve(41)

    assert (workload.kind, workload.pod, workload.job_id) == ("pod", "trainer-x7k2p", UID)
    assert job(workload) == ("job", "trainer", "research", "downward_api")


def test_a_process_that_only_the_hook_reports(made: Made) -> None:
    cases: list[tuple[Pod | None, dict[str, str], tuple[str, str, str, str]]] = [
        (SIDECAR, {}, ("job", "trainer", "research", "downward_api")),
        (SIDECAR, {"GPUGAUGE_JOB": "night"}, ("declared", "1000/night", "research", "hook")),
        (Pod("research", "trainer-worker-1", UID), PYTORCHJOB, ("pytorchjob", "trainer", "research", "hook")),
        (None, {"SLURM_JOB_ID": "7"}, ("slurm", "1000/7", "", "hook")),
    ]
    for own, environment, expected in cases:
        workload = over(made, own_pod=own).claimed(environment | {"command": "train.py"}, "a" * 32, 1000, 4026531999)

        assert job(workload) == expected
        assert workload.pod == (own.name if own else "")


def test_ranks_that_only_the_hook_reports_share_the_port_in_their_container(made: Made) -> None:
    workloads = over(made)

    def claimed(session: str, port: str, world: str, namespace: int, start: str = "77") -> str:
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": world, "init_start": start}
        return workloads.claimed(environment, session, 1000, namespace).job

    ranks = [claimed(session, "29500", "2", 1) for session in "ab"]
    others = [claimed("c", "29501", "2", 1), claimed("d", "29500", "2", 2), claimed("e", "29500", "1", 1)]
    later = claimed("f", "29500", "2", 1, "99")  # the kernel uses the number of a namespace again

    assert len(set(ranks)) == 1
    assert len({*ranks, *others, later}) == 5


def test_sources_are_read_in_a_thread_from_start_to_stop(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpugauge.workload.orchestrators._MIN_REFRESH_SECONDS", 0.01)
    made.process(41, cgroup=POD)
    before = set(threading.enumerate())
    workloads = over(made, pod_logs=pod_logs(tmp_path / "log", *NAMED, UID, {"main": ID}))
    assert workloads.resolve(41).pod == ""

    workloads.start()
    deadline = time.monotonic() + 20
    while not workloads.resolve(41).pod:  # resolve() never reads the logs itself
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert names(workloads.resolve(41)) == (*NAMED, "main")
    assert set(threading.enumerate()) > before

    workloads.stop()
    assert set(threading.enumerate()) == before


def test_name_is_kept_when_the_log_files_are_removed(made: Made, tmp_path: Path) -> None:
    made.process(41, cgroup=v2(f"/kubepods/burstable/pod{UID}/{OTHER_ID}"))
    log = pod_logs(tmp_path / "log", *NAMED, UID, {"main": ID})
    workloads = over(made, pod_logs=log)
    workloads.resolve(41)
    workloads.refresh()
    first = workloads.resolve(41)
    log.rename(tmp_path / "gone")
    workloads.refresh()

    assert names(first) == names(workloads.resolve(41)) == (*NAMED, "")


def test_pod_by_the_kubelet(made: Made, tmp_path: Path) -> None:
    workloads = over(made, kubelet_socket=tmp_path / "s")
    with serving(tmp_path / "s", Service(listing(SHARED))):
        workloads.refresh()
    cases: list[tuple[str, DeviceNames, tuple[str, str, str]]] = [
        ("trainer-0", (("GPU-1",),), (*NAMED, "main")),
        ("trainer-0", (("GPU-1", "nvidia1"),), (*NAMED, "main")),
        ("trainer-0", (("GPU-2",),), (*NAMED, "helper")),
        ("trainer-0", (("GPU-1",), ("GPU-2",)), ("", "", "")),  # no container has both devices
        ("trainer-0", (("GPU-1",), ("GPU-3",)), ("", "", "")),  # nobody has the second one
        ("trainer-0", (("GPU-3",),), ("", "", "")),
        ("trainer-0", (), ("", "", "")),
        ("server-0", (("GPU-1",),), ("prod", "server-0", "main")),
        ("server-0", (("GPU-2",),), ("", "", "")),  # a device of another pod
        ("node-7", (("GPU-1",),), ("", "", "")),  # host network, or a pod without a device
        ("", (("GPU-2",),), ("", "", "")),
    ]
    for start, (hostname, devices, expected) in enumerate(cases):
        made.process(41, cgroup=POD, environ={"HOSTNAME": hostname}, start=start)
        made.process(42, environ={"HOSTNAME": hostname}, start=start)

        assert names(workloads.resolve(41, devices)) == expected, (hostname, devices)
        assert names(workloads.resolve(41)) == expected
        assert names(workloads.resolve(42, devices)) == ("", "", "")


def test_container_by_the_kubelet_for_a_pod_known_by_its_log_files(made: Made, tmp_path: Path) -> None:
    made.process(41, cgroup=v2(f"/kubepods/burstable/pod{UID}/{OTHER_ID}"))
    log = pod_logs(tmp_path / "log", *NAMED, UID, {"main": ID})
    workloads = over(made, kubelet_socket=tmp_path / "s", pod_logs=log)
    workloads.resolve(41)
    with serving(tmp_path / "s", Service(listing(SHARED))):
        workloads.refresh()

    assert names(workloads.resolve(41, (("GPU-2",),))) == (*NAMED, "helper")


def test_allocations_of_every_orchestrator(made: Made, tmp_path: Path) -> None:
    (tmp_path / "0").write_text("7\n")
    (tmp_path / "GPU-1").write_text("8\n")
    workloads = over(made, kubelet_socket=tmp_path / "s", job_mapping_dir=tmp_path)
    empty = workloads.allocations()
    with serving(tmp_path / "s", Service(listing({NAMED: {"main": {"nvidia.com/gpu": ["GPU-1"]}}}))):
        workloads.refresh()
        full = workloads.allocations()
        workloads.refresh()

    assert empty == {}
    assert full == {"GPU-1": (Workload("pod", *NAMED, "main"), slurm("8")), "index:0": (slurm("7"),)}
    assert workloads.allocations() is full
    assert workloads.sources() == {"kubelet": True, "slurm": True}


def test_a_prolog_that_does_not_run_is_noticed_by_a_job(made: Made, tmp_path: Path) -> None:
    workloads, up = over(made, job_mapping_dir=tmp_path / "jobs"), []
    for pid, group in ((41, "/user.slice"), (42, "/system.slice/slurmstepd.scope/job_71/step_0")):
        made.process(pid, cgroup=v2(group))
        workloads.resolve(pid)
        workloads.refresh()
        up.append(workloads.sources()["slurm"])
    (tmp_path / "jobs").mkdir()
    workloads.refresh()

    assert [*up, workloads.sources()["slurm"]] == [True, False, True]


def test_counters_are_complete_from_the_start(made: Made) -> None:
    counters: Mapping[str, int] = over(made).counters()

    assert counters == dict.fromkeys(
        ("pids_vanished", "labels_cleaned", "jobs_changed", "kubelet_failures", "devices_ignored"), 0
    )


@settings(max_examples=50, deadline=None)
@given(
    histories=st.lists(
        st.tuples(st.integers(1, 4), st.one_of(st.none(), st.tuples(st.integers(1, 3), st.binary(max_size=300)))),
        max_size=20,
    )
)
def test_hostile_processes_with_reused_pids_are_distinguished(
    tmp_path_factory: pytest.TempPathFactory, histories: list[tuple[int, tuple[int, bytes] | None]]
) -> None:
    made = proc(tmp_path_factory.mktemp("proc") / "proc")
    workloads = over(made)
    alive: dict[int, str] = {}
    for life, (pid, event) in enumerate(histories):
        if event is None:
            if pid in alive:
                del alive[pid]
                (made.root / str(pid)).rename(made.root / f"gone-{life}")
        else:
            uid, name = event
            alive[pid] = str(uid)
            made.process(pid, [b"./" + name.replace(b"\0", b""), b"s3cret"], uid=uid, start=life)
        for each in range(1, 5):
            workload = workloads.resolve(each)
            assert workload.user == alive.get(each, "")
            assert all(label.isprintable() and len(label.encode()) <= 128 for label in workload)
            assert "s3cret" not in workload.command


@pytest.fixture
def real_cgroup() -> Iterator[Path]:
    """Create a cgroup with the name of a container, if permitted."""
    parent = next(
        filter(None, map(partial(Workloads(Procfs()).cgroup_directory, os.getpid()), ("pids", "memory"))), None
    )
    if parent is None:
        give_up("our own cgroup is not visible")
    folder = parent / f"docker-{ID}.scope"
    try:
        folder.mkdir()
    except OSError as error:
        give_up(f"no right to make a cgroup: {error}")
    yield folder
    folder.rmdir()


def test_real_cgroup(real_cgroup: Path) -> None:
    workloads = Workloads(Procfs())
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        (real_cgroup / "cgroup.procs").write_text(str(child.pid))
        workload = workloads.resolve(child.pid)
        found = {workloads.cgroup_directory(child.pid, controller) for controller in ("pids", "memory")}
        child.stdin.close()

    assert (workload.kind, workload.container, workload.command) == ("container", ID[:12], "cat")
    assert real_cgroup in found


def test_real_processes(tmp_path: Path) -> None:
    script = tmp_path / "real_work.py"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    environment = {**os.environ, "WANDB_RUN_ID": "r1"}
    workloads = Workloads(Procfs())
    with subprocess.Popen(
        [sys.executable, "-u", str(script), "--token", "s3cret"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        workload = workloads.resolve(child.pid)
        child.stdin.close()

    assert (workload.command, workload.run_id) == ("real_work.py", "wandb:r1")
    assert workload.user
    assert workloads.resolve(child.pid) == Workload()
    assert workloads.sources()["environ"] is True
