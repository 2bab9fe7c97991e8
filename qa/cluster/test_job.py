"""Stage `job`: pods with the hook that do not run as root, on two simulated nodes, judged by a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.e2e.manifests import FOLDER
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
COMPONENTS = ("simulate", "hostpid", "device-plugin")
# A training on the CPU of a node with a GPU, here a simulated one. It runs until the test deletes it.
SCRIPT = f"{PYTHON} {gpus.WORKLOADS}/small.py 600 /tmp/out"
RBAC = "rbac.authorization.k8s.io"
JOB_LABELS = ("workload_job_kind", "workload_namespace", "workload_job")
INDEXED, NAMED = version() >= (1, 22), {"GPUGAUGE_JOB": "night"}


@contextmanager
def simulated(cluster: Cluster, folder: Path, *components: str, binds: bool = True) -> Iterator[None]:
    """Run a DaemonSet that simulates GPUs and hands out the hook; `binds`: with the right that `components` need."""
    path = kustomization(folder, "base", *(f"components/{each}" for each in (*COMPONENTS, *components)), "image")
    objects = [each for each in yaml.safe_load_all(cluster.kubectl("kustomize", path)) if each]
    apply(cluster, *(each for each in objects if each["kind"] != "ClusterRoleBinding" or binds))
    if "kubelet-pods" in components:
        # A kubelet before 1.33 knows no smaller right.
        rule = {"apiGroups": [""], "resources": [KUBELET], "verbs": ["get"]}
        meta = {"name": "gpugauge-kubelet-pods"}
        apply(cluster, {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": [rule]})
    cluster.kubectl("rollout", "status", "daemonset/gpugauge", "-n", "gpugauge", "--timeout=180s")
    until(lambda: daemon_pods(cluster).keys() == NODES.keys(), 180, "the DaemonSet runs on both nodes")
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


def hooked(cluster: Cluster) -> list[dict[str, str]]:
    """Return the labels of the job's trainings that report, of all nodes; the simulated ones have other pods."""
    found = [labels for node in NODES for labels, _ in metrics(cluster, node, "torch_process_info")]
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
    addresses = {name: f"{each['status']['podIP']}:10478" for name, each in daemon_pods(simulated).items()}
    nodes = {name: Node("", name, "") for name in addresses}
    server = Server("oldest", need("prometheus"), need("prometheus-alertmanager"))
    truth = ("declared", space, "1234/night") if env else ("job", space, "train")
    with webhook() as hook, judged(tmp_path / "server", server, nodes, addresses, {"all": FAST}, hook) as url:
        apply(simulated, job(space, env, indexed=INDEXED))
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


def test_a_source_that_returns_names_the_jobs_that_were_found_without_it(cluster: Cluster, tmp_path: Path) -> None:
    space = namespace(cluster, "returns")

    def jobs() -> set[tuple[str, ...]]:
        return {tuple(each[key] for key in JOB_LABELS) for each in hooked(cluster) if each["workload_job"]}

    def state(name: str) -> list[float]:
        found = [(labels, value) for node in NODES for labels, value in metrics(cluster, node, name)]
        return [value for labels, value in found if {"pods", "jobs_changed"} & {*labels.values()}]

    with simulated(cluster, tmp_path, "kubelet-pods", binds=False):
        apply(cluster, job(space, {}, indexed=False, pods=2))
        until(lambda: len(jobs()) == 2, 240, "each pod is a job, since its owner is not known")
        before, down = jobs(), state("gpugauge_attribution_source_up")
        binding = yaml.safe_load((FOLDER / "components" / "kubelet-pods" / "clusterrolebinding.yaml").read_text())
        apply(cluster, binding)
        until(lambda: jobs() == {("job", space, "train")}, 120, "both pods are one job")
        up, changed = state("gpugauge_attribution_source_up"), state("gpugauge_attribution_problems_total")
    cluster.kubectl("delete", "namespace", space, "--wait=false")

    assert {kind for kind, *_ in before} == {"pod"}
    assert (set(down), set(up)) == ({0}, {1})
    assert sum(changed) == 2
