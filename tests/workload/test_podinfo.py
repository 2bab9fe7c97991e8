from __future__ import annotations

import json
from pathlib import Path

import pytest
from qa.worlds.trees import proc, v2

from gpugauge.workload.controllers import Pod
from gpugauge.workload.podinfo import PodInfoError, compose_service, read_pod
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

# As the kubelet writes it: keys in order, values quoted as Go does.
LABELS = 'batch.kubernetes.io/job-name="train"\napp="a\\"b"\nempty=""\nbroken\nhalf="x\njob-name="train"\n'


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_pod_of_a_downward_api_volume(tmp_path: Path) -> None:
    pod = read_pod(write(tmp_path, namespace="ml", name="train-x7k2p", uid="3b6c", labels=LABELS))

    assert pod == Pod("ml", "train-x7k2p", "3b6c")
    assert pod.labels == {"batch.kubernetes.io/job-name": "train", "app": 'a"b', "job-name": "train"}


def test_a_folder_that_describes_no_pod(tmp_path: Path) -> None:
    with pytest.raises(PodInfoError, match="namespace: No such file"):
        read_pod(write(tmp_path, name="train"))
    with pytest.raises(PodInfoError, match="must not be empty"):
        read_pod(write(tmp_path, namespace=""))
    assert read_pod(write(tmp_path, namespace="ml")).labels == {}
    (tmp_path / "name").unlink()
    with pytest.raises(PodInfoError, match="name: No such file"):
        read_pod(tmp_path)


ID = "4f3c2b1a" * 8
PROJECT, SERVICE = "com.docker.compose.project", "com.docker.compose.service"


def test_service_of_compose(tmp_path: Path) -> None:
    (tmp_path / ID).mkdir()
    labels: list[tuple[object, str]] = [
        ({PROJECT: "shop", SERVICE: "fit"}, "shop/fit"),
        ({PROJECT: "shop", SERVICE: "fit", "com.docker.compose.oneoff": "False"}, "shop/fit"),
        ({PROJECT: "shop", SERVICE: "fit", "com.docker.compose.oneoff": "True"}, ""),
        ({PROJECT: "shop"}, ""),
        ({PROJECT: "shop", SERVICE: ""}, ""),
        ({PROJECT: 1, SERVICE: "fit"}, ""),
        (None, ""),
    ]
    for config, service in (
        *(({"Config": {"Labels": each}}, name) for each, name in labels),
        ({"Config": []}, ""),
        ([], ""),
    ):
        (tmp_path / ID / "config.v2.json").write_text(json.dumps(config))
        assert compose_service(tmp_path, ID) == service, config
    assert compose_service(tmp_path, "0" * 64) == ""


def test_replicas_of_a_compose_service_are_one_job(tmp_path: Path) -> None:
    made = proc(tmp_path / "proc")
    labels = {PROJECT: "shop", SERVICE: "fit"}
    for pid, identity in ((41, ID), (42, "0d1e2f3a" * 8)):
        made.process(pid, cgroup=v2(f"/system.slice/docker-{identity}.scope"))
        (tmp_path / "docker" / identity).mkdir(parents=True)
        (tmp_path / "docker" / identity / "config.v2.json").write_text(json.dumps({"Config": {"Labels": labels}}))
    made.process(43, cgroup=v2(f"/system.slice/docker-{'1' * 64}.scope"))
    workloads = Workloads(Procfs(str(made.root)), docker_containers=tmp_path / "docker")
    jobs = [(w.job_kind, w.job.partition("/")[2]) for w in map(workloads.resolve, (41, 42, 43))]

    assert jobs == [("compose", "shop/fit"), ("compose", "shop/fit"), ("container", "1" * 12)]
