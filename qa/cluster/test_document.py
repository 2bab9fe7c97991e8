"""Stage `document`: the commands of docs/install-kubernetes.md, in order, as they stand there. Nothing is replaced: the
image has the names of the document (images.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.documents import blocks, fresh_checkout, shell

from qa.cluster.cluster import NODES, Cluster, until, version
from qa.cluster.installed import daemon_pods
from qa.cluster.objects import apply, definitions, namespace

pytestmark = pytest.mark.cluster

DOCUMENT = "install-kubernetes.md"
# What the document lists under "Before".
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
ON_THE_NODES = ("/var/lib/gpugauge", "/etc/cdi", "/var/lib/kubelet/seccomp")


@pytest.fixture
def before(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster with what the document takes for granted, and nothing of it afterwards."""
    apply(cluster, *definitions(), RUNTIME_CLASS)
    for kind in ("podmonitors", "servicemonitors", "prometheusrules"):
        until(lambda kind=kind: "rror" not in cluster.kubectl("get", kind, check=False), kind)  # type: ignore[misc]  # the lambda has a default
    for name in ("training", "monitoring"):
        namespace(cluster, name, "baseline")
    yield cluster
    # Its pod would hold a GPU of the later stages.
    cluster.kubectl("delete", "job", "train", "-n", "training", "--cascade=foreground", "--ignore-not-found")
    cluster.kubectl("delete", "namespace", "gpugauge", "--ignore-not-found")
    cluster.kubectl("delete", "runtimeclass", "nvidia", "--ignore-not-found")


def test_every_command_in_order(before: Cluster, tmp_path: Path) -> None:
    copy = fresh_checkout(tmp_path)
    environment = {**os.environ, "KUBECONFIG": str(before.kubeconfig)}

    def follow(heading: str) -> None:
        for block in blocks(DOCUMENT, heading):
            print(block)
            shell(block, copy, environment)

    follow("The image")
    follow("On each node")
    until(lambda: daemon_pods(before).keys() == NODES.keys(), "the DaemonSet runs on both nodes")
    images = {each["spec"]["containers"][0]["image"] for each in daemon_pods(before).values()}
    if version() >= (1, 29):  # "The component requires Kubernetes 1.29 or newer"
        follow("Beside a training")
        until(lambda: before.items("pods", "-n", "training"), "a pod of the Job with the sidecar is admitted")
    follow("Removing it")
    left = {path for place in ON_THE_NODES for name in NODES for path in (before.folder / f"{name}{place}").rglob("*")}

    assert images == {"registry.example/gpugauge:0.2.0"}
    assert before.get("namespace", "gpugauge") is None
    assert {path for path in left if path.is_file()} == set()
    assert all(before.get("namespace", name) for name in ("training", "monitoring"))
