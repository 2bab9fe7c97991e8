"""The jobs of pods and Slurm jobs to whom devices are allocated, step by step, and sources that fail."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import cases

from gpugauge.workload import holders as of
from gpugauge.workload.holders import Holders, pod_key, slurm_key
from gpugauge.workload.identity import Workload
from gpugauge.workload.job import Job
from gpugauge.workload.orchestrators import Orchestrators, View
from gpugauge.workload.pids import PidTable
from gpugauge.workload.podinfo import Place, PodNames
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.worlds.trees import proc

POD, KEY = Workload("pod", "ml", "dev", "main"), pod_key("ml", "dev")
A, B, C = (Job("name", name) for name in "abc")


def allocated(uid: str, *pods: Workload) -> View:
    names = PodNames(pods={uid: Place("ml", "dev", "main")})
    return View(kubelet={f"GPU-{n}": (pod,) for n, pod in enumerate(pods)}, names=names)


def test_the_job_of_a_pod_over_its_life() -> None:
    now = 0.0
    holders = Holders(lambda: now)

    def found(job: Job, uid: str, start: int, at: float) -> tuple[Job, int]:
        nonlocal now
        now = at
        holders.found(KEY, job, uid, start)
        return holders.job(POD), holders.changes

    assert holders.job(POD) == Job()
    assert found(A, "u1", 10, 0.0) == (A, 1)
    assert found(B, "u1", 20, 90.0) == (A, 1)  # its second training
    assert found(A, "u1", 10, 100.0) == (A, 1)
    assert found(B, "u1", 20, 250.0) == (A, 1)
    assert found(B, "u1", 20, 250.1) == (B, 2)  # the first has been gone for long
    assert found(A, "u2", 20, 250.2) == (B, 2)
    assert found(A, "u2", 21, 250.3) == (A, 3)  # another pod of that name, as its process started later
    for key, before in ((KEY, B), (pod_key("ml", "other"), A)):
        holders.renamed(key, before, C)
    assert (holders.job(POD), holders.changes) == (A, 3)
    holders.renamed(KEY, A, C)
    assert (holders.job(POD), holders.changes) == (C, 4)
    for view, job, changes in ((allocated("u2", POD), C, 4), (allocated("u3", POD), Job(), 5)):
        holders.forget(view)
        assert (holders.job(POD), holders.changes) == (job, changes)


def test_a_slurm_job_is_that_of_its_user_unless_the_kernel_states_it() -> None:
    holders = Holders(lambda: 0.0)
    mine = Workload(kind="slurm", job_id="7", user="ada")
    assert holders.job(mine) == Job("slurm", "7", source="slurm")
    holders.found(slurm_key("7", "bob"), A, "", 1)
    assert holders.job(mine).name == "7"
    holders.found(slurm_key("7", "ada"), B, "", 1)
    assert holders.job(mine) == B
    holders.found(slurm_key("7", ""), C, "", 1)
    assert holders.job(mine) == C
    holders.forget(View())
    assert holders.job(mine) == C  # Slurm's are not those of the kubelet


def test_the_number_of_holders_is_limited_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "_MAX_HOLDERS", 3)
    holders = Holders(lambda: 0.0)
    for number in range(5):
        holders.found(pod_key("ml", str(number)), A, "u", 1)
        known = [n for n in range(5) if holders.job(Workload("pod", "ml", str(n))) == A]
        assert known == [n for n in range(number + 1) if n > number - 3]


def test_an_allocation_has_the_job_of_its_holder_until_it_is_gone(tmp_path: Path) -> None:
    workloads = Workloads(Procfs(str(proc(tmp_path).root)), clock=lambda: 0.0)
    sources = workloads._orchestrators
    sources.view = allocated("u1", POD)
    first = workloads.version
    for count, key in enumerate((KEY, slurm_key("7", "")), 1):
        workloads._holders.found(key, A, "u1", 1)
        assert workloads.version == first + count
    assert [w.job for held in workloads.allocations().values() for w in held] == ["a"]
    sources.view = allocated("u1")
    workloads.allocations()
    sources.view = allocated("u1", POD)
    assert [w.job for held in workloads.allocations().values() for w in held] == [""]


@cases(("read", "source"), [("_ask_kubelet", "kubelet"), ("_read_jobs", "slurm"), ("_read_names", "pod_logs")])
def test_a_source_that_fails_is_down_by_its_name(
    read: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Orchestrators(None, tmp_path, tmp_path, str, 15.0, lambda: 0.0)
    monkeypatch.setattr(made, read, lambda: 1 // 0)
    made.refresh()
    assert (made.sources[source].up, made.view) == (False, View())
    assert f"reading {source} failed: ZeroDivisionError" in caplog.text


@cases("stopping", [False, True])
def test_a_thread_waits_for_its_next_turn_unless_it_stops(stopping: bool) -> None:
    made, waits = Orchestrators(None, None, None, str, 15.0, lambda: 0.0), list[Any]()

    class Wakes(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return True

    made.wake, thread = Wakes(), SimpleNamespace(stopping=SimpleNamespace(wait=lambda _: stopping))
    made._thread = thread  # type: ignore[assignment]  # a double
    made._wait()
    assert len(waits) == (not stopping)
    assert all(10.0 < seconds < 15.0 for seconds in waits)


def test_the_first_process_of_a_machine_has_a_start(tmp_path: Path) -> None:
    made = proc(tmp_path)
    made.process(1, start=5)
    table = PidTable(Procfs(str(made.root)))
    table.begin(100.0)
    assert [table.owner(pid).start for pid in (1, 0, -1)] == [5, None, None]
