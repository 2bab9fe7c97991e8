"""The cluster of a run, and which sentence of the documents a test shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.e2e.documents import ROOT

from qa.cluster.cluster import NODES, Cluster, cache, until, version
from qa.cluster.images import images
from qa.cluster.installed import daemon_pods
from qa.cluster.objects import apply, kustomization
from qa.cluster.stages import STAGES


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this version of Kubernetes does not have, and print it."""
    oldest = {stage.file: stage.since for stage in STAGES}
    marked = {item: [mark.args for mark in item.iter_markers("since")] for item in items}
    newer = [item for item in items if version() < max(*marked[item], oldest.get(item.path.name, ()), ())]
    config.hook.pytest_deselected(items=newer)
    items[:] = [item for item in items if item not in newer]
    if config.option.markexpr == "cluster":
        for item in newer:
            print(f"NOT RUN with Kubernetes {'.'.join(map(str, version()))}: {item.name}")


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster without nodes."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), cache())
    try:
        cluster.start_control()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster(control: Cluster) -> Cluster:
    """Return a cluster with two nodes."""
    control.images = images()
    control.start_nodes()
    return control


@pytest.fixture(autouse=True)
def shown(request: pytest.FixtureRequest) -> None:
    """Print what a test shows; a mark `shows` quotes a document, and the quotation must be in it."""
    for mark in request.node.iter_markers("shows"):
        for sentence in mark.args:
            place = quoted(sentence)
            print(f"\n{request.node.name}: {place}: {sentence}", end=" ")


def quoted(sentence: str) -> str:
    """Return file and line of a sentence of the documents, whatever its line breaks."""
    pattern = re.compile(r"\s+".join(re.escape(word) for word in sentence.split()))
    for document in ("install-kubernetes.md",):
        text = (ROOT / "docs" / document).read_text()
        found = pattern.search(text)
        if found:
            return f"docs/{document}:{text.count(chr(10), 0, found.start()) + 1}"
    raise AssertionError(f"no document says: {sentence}")


@pytest.fixture(scope="session")
def installed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return the cluster with a DaemonSet that knows processes and hands out the hook."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    apply(cluster, {**runtime, "handler": "nvidia"})
    components = ("runtimeclass", "hostpid", "device-plugin", "annotations")
    folder = tmp_path_factory.mktemp("installed")
    path = kustomization(folder, "base", *(f"components/{each}" for each in components), "image")
    cluster.kubectl("apply", "-k", path)
    until(lambda: daemon_pods(cluster).keys() == NODES.keys(), "the DaemonSet runs on both nodes")
    yield cluster
    cluster.kubectl("delete", "-k", path, "--ignore-not-found")
