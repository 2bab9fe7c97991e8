"""Stage `job`: pods with the hook that do not run as root, on two simulated nodes, judged by a real Prometheus."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.programs import Prometheus
from tests.e2e.webhook import webhook
from tests.needs import need

from qa.cluster import gpus
from qa.cluster.cluster import NODES, Cluster, until, version
from qa.cluster.installed import daemon_pods, log, scraped
from qa.cluster.objects import PYTHON, TRAINING_ENV, apply, kustomization, namespace, pod
from qa.cluster.test_identity import KUBELET
from qa.worlds.alert_fleet import FAST, PATIENCE, Node, Received, Server, judged

pytestmark = pytest.mark.cluster

PODS = 4
COMPONENTS = ("simulate", "hostpid", "device-plugin", "seccomp")
# A training on the CPU of a node with a GPU, here a simulated one. It runs until the test deletes it.
SCRIPT = f"{PYTHON} {gpus.WORKLOADS}/small.py 600 /tmp/out"
RBAC = "rbac.authorization.k8s.io"
JOB_LABELS = ("workload_job_kind", "workload_namespace", "workload_job")
INDEXED, NAMED = version() >= (1, 22), {"GPUGAUGE_JOB": "night"}


@contextmanager
def simulated(cluster: Cluster, folder: Path, *components: str) -> Iterator[None]:
    """Run a DaemonSet that simulates GPUs and hands out the hook."""
    path = kustomization(folder, "base", *(f"components/{each}" for each in (*COMPONENTS, *components)), "image")
    cluster.kubectl("apply", "-k", path)
    if "kubelet-pods" in components:
        # A kubelet before 1.33 knows no smaller right.
        rule = {"apiGroups": [""], "resources": [KUBELET], "verbs": ["get"]}
        meta = {"name": "gpugauge-kubelet-pods"}
        apply(cluster, {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": [rule]})
    until(lambda: daemon_pods(cluster).keys() == NODES.keys(), "the DaemonSet runs on both nodes")
    try:
        yield
    finally:
        cluster.kubectl("delete", "-k", path, "--ignore-not-found")


def job(space: str, env: Mapping[str, str], *, indexed: bool, pods: int = PODS) -> dict[str, object]:
    """Return a Job of pods that run at the same time, not as root."""
    template = pod("train", space, ["sh", "-c", SCRIPT], env={**TRAINING_ENV, **env}, gpus=1)
    spec = {"completions": pods, "parallelism": pods, "template": {"spec": template["spec"]}}
    spec |= {"completionMode": "Indexed"} if indexed else {}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": space}, "spec": spec}


def addresses(cluster: Cluster) -> dict[str, str]:
    """Return the addresses of the daemons, by node."""
    return {name: each["status"]["podIP"] for name, each in daemon_pods(cluster).items()}


def hooked(addresses: Iterable[str]) -> list[dict[str, str]]:
    """Return the labels of the job's trainings that report, of all nodes; the simulated ones have other pods."""
    found = [labels for address in addresses for labels, _ in scraped(address, "torch_process_info")]
    return [labels for labels in found if labels["workload_pod"].startswith("train-")]


@pytest.mark.parametrize("components", [("kubelet-pods",), ()], ids=["by its owner", "by the hook"])
def test_a_job_on_two_nodes_is_one_job_and_one_notification(
    cluster: Cluster, tmp_path: Path, components: tuple[str, ...]
) -> None:
    with simulated(cluster, tmp_path, *components):
        # Without the owner, the hook states the index or the name of the job.
        _one_job(cluster, tmp_path, "owner" if components else "hook", {} if components or INDEXED else NAMED)


def _one_job(simulated: Cluster, tmp_path: Path, name: str, env: dict[str, str]) -> None:
    space = namespace(simulated, name)
    daemons = addresses(simulated)
    nodes = {name: Node("", name, "") for name in daemons}
    ports = {name: f"{address}:10478" for name, address in daemons.items()}
    server = Server("oldest", need("prometheus"), need("prometheus-alertmanager"))
    truth = ("declared", space, "1234/night") if env else ("job", space, "train")
    with webhook() as hook, judged(tmp_path / "server", server, nodes, ports, {"all": FAST}, hook) as url:
        apply(simulated, job(space, env, indexed=INDEXED))
        until(lambda: len(hooked(daemons.values())) == PODS, f"{PODS} trainings report")
        received, prometheus = Received(server.name, hook), Prometheus(url)

        def of_the_job() -> list[str]:
            found = [alert["labels"] for _, alert in received.notifications()]
            return [each["alertname"] for each in found if each.get("workload_namespace") == space]

        until(of_the_job, "the job is reported")
        time.sleep(PATIENCE)  # in which a second notification would come
        # Each series that ever had a name. Those of the first seconds may have none yet.
        selector = 'last_over_time(torch_process_info{workload_pod=~"train-.*",workload_job!=""}[10m])'
        seen = prometheus.query(f"count by ({', '.join(JOB_LABELS)}) ({selector})")
        placed = {each["metric"]["instance"] for each in prometheus.query(f"count by (instance) ({selector})")}
        names = of_the_job()
    workers = [folder for each in daemon_pods(simulated).values() for folder in processes(each, b"--pulse")]
    kept = [re.search(r"CapPrm:\s+(\w+)", (folder / "status").read_text()) for folder in workers]
    logs = [
        log(simulated, each["metadata"]["name"], "gpugauge", "gpugauge") for each in daemon_pods(simulated).values()
    ]
    simulated.kubectl("delete", "job", "train", "-n", space, "--cascade=foreground")

    assert [tuple(each["metric"].get(key, "") for key in JOB_LABELS) for each in seen] == [truth]
    assert [float(each["value"][1]) for each in seen] == [PODS]
    assert placed == NODES.keys()
    assert names == ["TrainingOnCpu"], received.text()
    # Under the seccomp profile, and with SYS_PTRACE of `hostpid`.
    assert [int(found[1], 16) for found in kept if found] == [0] * len(NODES)
    assert "keeps capabilities" not in "".join(logs)


def test_a_source_that_returns_names_the_jobs_that_were_found_without_it(cluster: Cluster, tmp_path: Path) -> None:
    """The API server ends, without which a kubelet answers nobody; the daemons start again, and then it is back."""
    space = namespace(cluster, "returns")
    one = {("job", space, "train")}
    with simulated(cluster, tmp_path, "kubelet-pods"):
        places = addresses(cluster).values()

        def jobs() -> list[tuple[str, ...]]:
            return [tuple(each[key] for key in JOB_LABELS) for each in hooked(places) if each["workload_job"]]

        def state(name: str) -> list[float]:
            found = [sample for address in places for sample in scraped(address, name)]
            return [value for labels, value in found if {"pods", "jobs_changed"} & {*labels.values()}]

        apply(cluster, job(space, {}, indexed=False, pods=2))
        until(lambda: len(jobs()) == 2, "both trainings have a job")
        daemons = daemon_pods(cluster)
        first = {*jobs()}
        cluster.stop_api()
        for each in daemons.values():
            for folder in processes(each, b"serve"):  # the kubelet starts its container again
                os.kill(int(folder.name), signal.SIGKILL)
        until(lambda: len({*jobs()} - one) == 2, "each pod is a job, since its owner is not known")
        before = {*jobs()}
        until(lambda: state("gpugauge_attribution_source_up") == [0, 0], "the kubelets do not answer")
        cluster.start_api()
        until(lambda: len(jobs()) == 2 and {*jobs()} == one, "both pods are one job")
        until(lambda: state("gpugauge_attribution_source_up") == [1, 1], "the kubelets answer")
        until(lambda: sum(state("gpugauge_attribution_problems_total")) == 2, "each job has changed once")
    cluster.kubectl("delete", "namespace", space, "--wait=false")

    assert first == one
    assert {kind for kind, *_ in before} == {"pod"}


def processes(of: Any, argument: bytes) -> list[Path]:
    """Return the folders of the processes of a pod that have an argument."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            here = of["metadata"]["uid"] in (folder / "cgroup").read_text()
            found += [folder] if here and argument in (folder / "cmdline").read_bytes().split(b"\0") else []
    return found
