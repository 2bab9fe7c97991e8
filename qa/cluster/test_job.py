"""Stage `job`: a Job of four pods with the hook, on two simulated nodes, judged by a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.programs import Prometheus, wait_for
from tests.e2e.webhook import webhook
from tests.needs import need

from qa.cluster import gpus
from qa.cluster.cluster import NODES, Cluster, until, version
from qa.cluster.installed import daemon_pods, metrics
from qa.cluster.objects import PYTHON, TRAINING_ENV, apply, kustomization, namespace, pod
from qa.cluster.test_identity import KUBELET
from qa.worlds.alert_fleet import FAST, PATIENCE, Node, Received, Server, judged

pytestmark = pytest.mark.cluster

PODS = 4
COMPONENTS = ("simulate", "hostpid", "device-plugin", "kubelet-pods")
# A training on the CPU of a node with a GPU, here a simulated one. It runs until the test deletes it.
SCRIPT = f"{PYTHON} {gpus.WORKLOADS}/small.py 600 /tmp/out"
RBAC = "rbac.authorization.k8s.io"
JOB_LABELS = ("workload_job_kind", "workload_namespace", "workload_job")


@pytest.fixture(scope="module")
def simulated(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return the cluster with a DaemonSet that simulates GPUs, hands out the hook, and knows the owners of pods."""
    path = kustomization(
        tmp_path_factory.mktemp("simulated"), "base", *(f"components/{each}" for each in COMPONENTS), "image"
    )
    cluster.kubectl("apply", "-k", path)
    # A kubelet before 1.33 knows no smaller right.
    rule = {"apiGroups": [""], "resources": [KUBELET], "verbs": ["get"]}
    meta = {"name": "gpugauge-kubelet-pods"}
    apply(cluster, {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": [rule]})
    cluster.kubectl("rollout", "status", "daemonset/gpugauge", "-n", "gpugauge", "--timeout=180s")
    until(lambda: daemon_pods(cluster).keys() == NODES.keys(), 180, "the DaemonSet runs on both nodes")
    yield cluster
    cluster.kubectl("delete", "-k", path)


def job(space: str) -> dict[str, object]:
    """Return a Job of four pods that run at the same time; an Indexed one where the server knows it."""
    template = pod("train", space, ["sh", "-c", SCRIPT], env=TRAINING_ENV, gpus=1)
    indexed = {"completionMode": "Indexed"} if version() >= (1, 22) else {}
    spec = {"completions": PODS, "parallelism": PODS, "template": {"spec": template["spec"]}, **indexed}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": space}, "spec": spec}


def hooked(cluster: Cluster) -> list[dict[str, str]]:
    """Return the labels of the job's trainings that report, of all nodes; the simulated ones have other pods."""
    found = [labels for node in NODES for labels, _ in metrics(cluster, node, "torch_process_info")]
    return [labels for labels in found if labels["workload_pod"].startswith("train-")]


def test_a_job_on_two_nodes_is_one_job_and_one_notification(simulated: Cluster, tmp_path: Path) -> None:
    space = namespace(simulated, "indexed")
    addresses = {name: f"{each['status']['podIP']}:10478" for name, each in daemon_pods(simulated).items()}
    nodes = {name: Node("", name, "") for name in addresses}
    server = Server("oldest", need("prometheus"), need("prometheus-alertmanager"))
    truth = ("job", space, "train")
    with webhook() as hook, judged(tmp_path / "server", server, nodes, addresses, {"all": FAST}, hook) as url:
        apply(simulated, job(space))
        until(lambda: len(hooked(simulated)) == PODS, 150, f"{PODS} trainings report")
        began = time.monotonic()
        received, prometheus = Received(server.name, hook), Prometheus(url)

        def of_the_job() -> list[str]:
            found = [alert["labels"] for _, alert in received.notifications()]
            return [each["alertname"] for each in found if each.get("workload_namespace") == space]

        wait_for(of_the_job, 4 * PATIENCE, "the job is reported")
        waited = time.monotonic() - began
        time.sleep(PATIENCE)  # in which a second notification would come
        # Each series that ever had a name. Those of the first seconds may have none yet.
        selector = 'last_over_time(torch_process_info{workload_pod=~"train-.*",workload_job!=""}[10m])'
        seen = prometheus.query(f"count by ({', '.join(JOB_LABELS)}) ({selector})")
        placed = {each["metric"]["instance"] for each in prometheus.query(f"count by (instance) ({selector})")}
        names = of_the_job()
    simulated.kubectl("delete", "job", "train", "-n", space, "--cascade=foreground")

    assert [tuple(each["metric"].get(key, "") for key in JOB_LABELS) for each in seen] == [truth]
    assert [float(each["value"][1]) for each in seen] == [PODS]
    assert placed == NODES.keys()
    assert names == ["TrainingOnCpu"], received.text()
    assert waited < 2 * PATIENCE + 15
