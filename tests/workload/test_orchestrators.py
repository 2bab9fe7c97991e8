from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from qa.worlds.trees import ID, UID, pod_logs

from gpugauge.workload.identity import Workload
from gpugauge.workload.kubelet import Kubelet
from gpugauge.workload.orchestrators import Orchestrators, read_jobs
from gpugauge.workload.podinfo import Place
from tests.workload.kubelet import Service, listing, serving

A = Workload("pod", "research", "a", "main")
ONE = listing({("research", "a"): {"main": {"nvidia.com/gpu": ["GPU-1"]}}})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def orchestrators(
    folder: Path, clock: Callable[[], float], *, jobs: Path | None = None, timeout: float = 5.0, poll: float = 15.0
) -> Orchestrators:
    kubelet = Kubelet(folder / "kubelet.sock", timeout=timeout)
    return Orchestrators(kubelet, jobs, folder / "log", str, poll, clock)


def ups(made: Orchestrators) -> dict[str, bool | None]:
    return {name: source.up for name, source in made.sources.items()}


def test_machine_without_orchestrators(tmp_path: Path) -> None:
    made = orchestrators(tmp_path, Clock())
    made.refresh()

    assert ups(made) == {"kubelet": None, "pod_logs": None, "slurm": None}
    assert made.counters["kubelet_failures"] == 0


def test_pods_without_kubelet_and_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = orchestrators(tmp_path, Clock())
    made.request_pod_names(UID)
    made.refresh()
    made.refresh()

    assert ups(made) == {"kubelet": False, "pod_logs": False, "slurm": None}
    assert len(caplog.records) == 2


def test_kubelet_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    made = orchestrators(tmp_path, clock)
    with serving(tmp_path / "kubelet.sock", Service(ONE)):
        made.refresh()
    first = made.view
    assert first.kubelet == {"GPU-1": (A,)}

    clock.now += 30
    made.refresh()
    assert made.view is first
    assert ups(made)["kubelet"] is False

    clock.now += 31
    made.refresh()
    assert made.view.kubelet == {}

    with serving(tmp_path / "kubelet.sock", Service(ONE)):
        made.refresh()
    assert (made.view.kubelet, ups(made)["kubelet"]) == ({"GPU-1": (A,)}, True)
    assert made.counters["kubelet_failures"] == 2
    assert len(caplog.records) == 2


def test_an_error_of_ours_does_not_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = orchestrators(tmp_path, Clock(), jobs=tmp_path)
    monkeypatch.setattr(made, "_ask_kubelet", lambda: "x".encode("idna") + ("y" * 64).encode("idna"))

    made.refresh()

    assert (ups(made)["kubelet"], ups(made)["slurm"]) == (False, True)


def test_unknown_devices_are_counted_once(tmp_path: Path) -> None:
    made = orchestrators(tmp_path, Clock())
    with serving(tmp_path / "kubelet.sock", Service(b"")) as service:
        for devices in (["?", "GPU-1"], ["?", "GPU-1"], ["GPU-1"], ["?", "??"]):
            service.reply = listing({("research", "a"): {"main": {"nvidia.com/gpu": devices}}})
            made.refresh()

    assert made.counters["devices_ignored"] == 3


def test_whether_all_devices_are_known_is_that_of_the_last_reply(tmp_path: Path) -> None:
    made, found = orchestrators(tmp_path, Clock()), []
    with serving(tmp_path / "kubelet.sock", Service(b"")) as service:
        for devices in (["?", "GPU-1"], ["GPU-1"], ["?"], []):
            service.reply = listing({("research", "a"): {"main": {"nvidia.com/gpu": devices}}})
            made.refresh()
            found.append(made.ignored)

    assert found == [1, 0, 1, 0]


def test_job_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jobs = tmp_path / "jobs"
    elsewhere, made = (orchestrators(tmp_path, Clock(), jobs=folder) for folder in (jobs / "none", jobs))
    made.refresh()
    assert (ups(made)["slurm"], made.jobs_read_at, caplog.messages) == (True, 100.0, [])  # no job since the boot

    made.jobs_seen = True
    made.refresh()
    elsewhere.refresh()
    assert (ups(made)["slurm"], ups(elsewhere)["slurm"], made.jobs_read_at) == (False, False, None)
    assert "slurm.job_mapping_dir" in caplog.messages[0]
    assert "prolog.sh" in caplog.messages[0]

    jobs.mkdir()
    (jobs / "0").write_text("4711\n")
    made.refresh()
    assert ups(made)["slurm"] is True
    assert made.view.jobs.devices == {"index:0": (Workload("slurm", job_id="4711"),)}


def test_thread_refreshes_at_once_for_a_new_pod_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.workload.orchestrators._MIN_REFRESH_SECONDS", 0.01)
    made = orchestrators(tmp_path, Clock(), poll=3600)
    looked = threading.Event()
    refresh = made.refresh

    def noted() -> None:
        refresh()
        looked.set()

    made.refresh = noted  # type: ignore[method-assign]  # counted
    made.start()
    assert looked.wait(20)
    looked.clear()
    pod_logs(tmp_path / "log", "research", "a", UID, {"main": ID})
    made.request_pod_names(UID)
    assert looked.wait(20)
    made.stop()

    assert made.view.names.containers == {ID: Place("research", "a", "main")}
    assert made._thread is not None
    assert not made._thread.is_alive()


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def read(folder: Path) -> Mapping[str, tuple[Workload, ...]]:
    return read_jobs(folder, lambda uid: {1000: "alice"}.get(uid, str(uid))).devices


def test_jobs_by_index_instance_and_uuid(tmp_path: Path) -> None:
    write(tmp_path, **{"0": "4711\n4712\n\n4711\n", "1.2": "4713 1000\n", "MIG-a-b": "4714", "10": "\n"})

    assert read(tmp_path) == {
        "index:0": (Workload("slurm", job_id="4711"), Workload("slurm", job_id="4712")),
        "index:1.2": (Workload("slurm", job_id="4713", user="alice"),),
        "MIG-a-b": (Workload("slurm", job_id="4714"),),
    }


def test_hostile_files(tmp_path: Path) -> None:
    write(tmp_path, **{"0": "\x1b[31m\n", "1": "9" * 10_000, "2": "\n".join(map(str, range(1000))), "..x": "1"})
    (tmp_path / "3").mkdir()
    os.mkfifo(tmp_path / "4")
    (tmp_path / "5").symlink_to("/nowhere")
    jobs = read(tmp_path)

    assert jobs.keys() == {"index:0", "index:1", "index:2"}
    assert [jobs["index:0"][0].job_id, jobs["index:1"][0].job_id] == ["?[31m", "9" * 128]
    assert len(jobs["index:2"]) == 64


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "gone")
