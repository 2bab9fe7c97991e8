"""When the cluster is asked, and what a process's job is before and after."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest
from qa.worlds.trees import ID, UID, pod_logs, proc, v2

from gpugauge.workload.controllers import Pod
from gpugauge.workload.controllers.owners import OwnerReference
from gpugauge.workload.kubernetes.metadata import PodMetadata
from gpugauge.workload.kubernetes.source import PodSource, PodSourceError
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

JOB = Pod("ml", "train-0-x7k2p", UID, {}, "metadata", OwnerReference("batch", "Job", "train"))


class Cluster:
    """A source of pods; `error` is what it raises."""

    def __init__(self, *pods: Pod) -> None:
        self.listed = {pod.uid: pod for pod in pods}
        self.error, self.asked, self.now = "", 0, 100.0

    def pods(self, wanted: Collection[str]) -> dict[str, Pod]:
        self.asked += 1
        if self.error:
            raise PodSourceError(self.error)
        return {uid: pod for uid, pod in self.listed.items() if uid in wanted}

    def metadata(self) -> PodMetadata:
        return PodMetadata(cast("PodSource", self), lambda: self.now)


def test_it_asks_at_the_start_and_for_each_new_pod_once() -> None:
    cluster = Cluster(JOB)
    metadata = cluster.metadata()
    asked = []
    for second in range(400):
        cluster.now = 100.0 + second
        if second in {10, 11}:
            metadata.want(UID)
        metadata.refresh()
        asked.append(cluster.asked)

    assert [second for second in range(400) if asked[second] != asked[second - 1]] == [0, 10, 310]
    assert metadata.pods == {UID: JOB}
    assert metadata.refresh() is metadata.pods


def test_a_pod_that_nobody_lists_is_asked_for_at_intervals() -> None:
    cluster = Cluster()
    metadata = cluster.metadata()
    metadata.want("gone")
    for second in range(60):
        cluster.now = 100.0 + second
        metadata.refresh()

    assert cluster.asked == 5


def test_a_source_that_fails_is_logged_once_and_asked_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(JOB)
    metadata, cluster.error = cluster.metadata(), "the kubelet refuses (403)"
    states = [metadata.source.up]
    for second in range(60):
        cluster.now = 100.0 + second
        metadata.want(f"pod-{second}")
        metadata.refresh()
    states.append(metadata.source.up)

    assert cluster.asked == 5
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "the kubelet refuses (403); controllers of pods are not known"
    ]
    cluster.error, cluster.now = "", 200.0
    metadata.refresh()
    assert [*states, metadata.source.up] == [None, False, True]


def test_an_unknown_controller_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    workflow = [
        Pod("ml", f"step-{i}", str(i), {}, "metadata", OwnerReference("argoproj.io", "Workflow", "w")) for i in range(3)
    ]
    cluster = Cluster(*workflow, JOB)
    metadata = cluster.metadata()
    for uid in ("0", "1", "2", UID):
        metadata.want(uid)
        metadata.refresh()

    assert [r.getMessage() for r in caplog.records] == [
        "the controller Workflow.argoproj.io is not known: each of its pods is a job of its own"
    ]


def test_the_number_of_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.workload.kubernetes.metadata._MAX_PODS", 10)
    cluster = Cluster(*(Pod("ml", f"p{i}", str(i), {}, "metadata") for i in range(100)))
    metadata = cluster.metadata()
    for number in range(100):
        metadata.want(str(number))
        metadata.refresh()

    assert metadata.pods.keys() == {str(number) for number in range(90, 100)}


@pytest.mark.parametrize("down", [False, True])
def test_a_process_waits_for_its_controller_and_only_for_a_while(tmp_path: Path, down: bool) -> None:
    """Its log folders name the pod at once; its environment claims another job."""
    made, cluster = proc(tmp_path / "proc"), Cluster(JOB)
    cluster.error = "the kubelet refuses (403)" if down else ""
    claims = {"JOB_COMPLETION_INDEX": "0", "HOSTNAME": "train-0"}
    made.process(41, cgroup=v2(f"/kubepods/burstable/pod{UID}/{ID}"), environ=claims)
    logs = pod_logs(tmp_path / "log", JOB.namespace, JOB.name, UID, {"main": ID})
    workloads = Workloads(Procfs(str(made.root)), pod_logs=logs, metadata=cluster.metadata(), clock=lambda: cluster.now)
    seen = []
    for second in range(100, 170):
        cluster.now = second
        found = workloads.resolve(41)
        seen.append((found.job_kind, found.job, found.job_source))
        workloads.refresh()

    expected = ("job", "train", "environment" if down else "metadata")
    assert list(dict.fromkeys(seen)) == [("", "", ""), expected]
    assert seen.index(expected) == (60 if down else 1)
    assert workloads.sources()["pods"] is not down
