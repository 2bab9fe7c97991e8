"""Stage `identity`: what two real kubelets and the API state about the owners of pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpugauge.workload.controllers import Pod
from gpugauge.workload.job import JobFacts, resolve
from gpugauge.workload.kubernetes.source import PodSource, PodSourceError, of_api, of_kubelet
from qa.cluster.cluster import ADDRESS, NODES, Cluster, until, version
from qa.cluster.images import BASE
from qa.cluster.objects import apply, namespace

pytestmark = pytest.mark.cluster

SPACE = "owners"
KUBELET = "nodes/pods" if version() >= (1, 33) else "nodes/proxy"
RULES = {"kubelet": {"resources": [KUBELET], "verbs": ["get"]}, "api": {"resources": ["pods"], "verbs": ["list"]}}


def template(**labels: str) -> dict[str, Any]:
    """Return a pod that sleeps."""
    spec = {"containers": [{"name": "main", "image": BASE, "command": ["sleep", "600"]}], "restartPolicy": "Always"}
    return {"metadata": {"labels": {"app": "x", **labels}}, "spec": {**spec, "terminationGracePeriodSeconds": 1}}


def workload(kind: str, name: str, api: str = "apps/v1", **spec: Any) -> dict[str, Any]:
    """Return a controller of two pods."""
    base = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": SPACE}}
    if kind == "Job":
        pod = template()
        pod["spec"]["restartPolicy"] = "Never"
        return {**base, "spec": {"parallelism": 2, "completions": 2, "template": pod}}
    return {**base, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template(), **spec}}


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> dict[str, str]:
    """Return the pods of the namespace that run, by UID: their names."""
    namespace(cluster, SPACE, "privileged")
    claims = {"job-name": "train", "batch.kubernetes.io/job-name": "train", "pod-template-hash": "5d4f9c8b7"}
    apply(
        cluster,
        *(workload("Job", "train", "batch/v1"), workload("StatefulSet", "server", serviceName="server")),
        workload("Deployment", "web"),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **template(**claims),
            "metadata": {"name": "train-5d4f9c8b7-x7k2p", "namespace": SPACE, "labels": claims},
        },
    )

    def running() -> dict[str, str]:
        found = cluster.items("pods", "-n", SPACE)
        return {p["metadata"]["uid"]: p["metadata"]["name"] for p in found if p["status"]["phase"] == "Running"}

    until(lambda: len(running()) == 7, "all pods run")
    return running()


def account(cluster: Cluster, folder: Path, name: str, rule: dict[str, Any] | None) -> Path:
    """Return the folder with the token of a new ServiceAccount that has the right."""
    meta = {"name": f"owners-{name}"}
    subject = {"kind": "ServiceAccount", "name": meta["name"], "namespace": SPACE}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": meta}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": meta, "subjects": [subject]}
    secret = {"name": meta["name"], "annotations": {"kubernetes.io/service-account.name": meta["name"]}}
    apply(
        cluster,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "namespace": SPACE}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**secret, "namespace": SPACE},
            "type": "kubernetes.io/service-account-token",
        },
        {**role, "rules": [{"apiGroups": [""], **rule}] if rule else []},
        {**binding, "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": meta["name"]}},
    )
    until(lambda: "token" in cluster.get("secret", meta["name"], "-n", SPACE).get("data", {}), "there is a token")
    form = "-o=go-template={{.data.token | base64decode}}"
    (folder / "token").write_text(cluster.kubectl("get", "secret", meta["name"], "-n", SPACE, form))
    (folder / "ca.crt").write_bytes((cluster.folder / "pki" / "ca.pem").read_bytes())
    return folder


def sources(kind: str, folder: Path) -> list[PodSource]:
    """Return the source of each node."""
    if kind == "api":
        return [of_api(ADDRESS, 443, node, folder) for node in NODES]
    return [of_kubelet(address, node, folder, None, verify=True) for node, address in NODES.items()]


def job(pod: Pod) -> tuple[str, str]:
    found = resolve(JobFacts(pod=pod, pod_uid=pod.uid))
    return found.kind, found.name


@pytest.mark.parametrize("kind", RULES)
def test_each_pod_has_the_job_of_its_controller(
    cluster: Cluster, pods: dict[str, str], tmp_path: Path, kind: str
) -> None:
    folder = account(cluster, tmp_path, kind, RULES[kind])
    found = {uid: pod for source in sources(kind, folder) for uid, pod in source.pods(pods.keys()).items()}
    jobs = sorted(job(pod) for pod in found.values())

    assert {uid: pod.name for uid, pod in found.items()} == pods
    assert jobs == [
        *[("deployment", "web")] * 2,
        *[("job", "train")] * 2,
        ("pod", "train-5d4f9c8b7-x7k2p"),
        *[("statefulset", "server")] * 2,
    ]


@pytest.mark.parametrize("kind", RULES)
def test_without_the_right_it_is_refused(cluster: Cluster, pods: dict[str, str], tmp_path: Path, kind: str) -> None:
    folder = account(cluster, tmp_path, f"no-{kind}", None)
    for source in sources(kind, folder):
        with pytest.raises(PodSourceError, match=r"refuses \(403\): the ServiceAccount needs"):
            source.pods(pods.keys())
    (folder / "token").write_text("wrong")
    with pytest.raises(PodSourceError, match=r"refuses the token \(401\)"):
        sources(kind, folder)[0].pods(pods.keys())
