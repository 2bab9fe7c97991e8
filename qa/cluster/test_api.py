"""Stage `api`: what the API server and the controllers make of every folder and of the chart. No node is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.manifests import FOLDER, SIDECARS, TARGETS, of_kind
from tests.e2e.test_chart import OVERLAYS, rendered

from qa.cluster.cluster import Cluster, until
from qa.cluster.objects import apply, definitions, kustomization, namespace

pytestmark = pytest.mark.cluster

NATIVE_SIDECARS = pytest.mark.since(1, 29)
SINCE = {"report": pytest.mark.since(1, 21), **dict.fromkeys(SIDECARS, NATIVE_SIDECARS)}  # CronJob of batch/v1
FOLDERS = [pytest.param(each, marks=SINCE.get(each, ())) for each in TARGETS]
PREVIOUS = {"image": {"tag": "0.0.9"}}


@pytest.fixture(scope="module")
def api(control: Cluster) -> Cluster:
    """Return a cluster with the kinds of the Prometheus operator, and the namespaces that documents name."""
    apply(control, *definitions())
    for kind in ("podmonitors", "servicemonitors", "prometheusrules"):
        until(lambda kind=kind: "Error" not in control.kubectl("get", kind, check=False), kind)  # type: ignore[misc]  # the lambda has a default
    for name in ("training", "monitoring"):
        namespace(control, name, "baseline")
    return control


@pytest.fixture
def clean(api: Cluster) -> Iterator[Cluster]:
    """Return the same, without the namespace `gpugauge` afterwards."""
    yield api
    api.kubectl("delete", "namespace", "gpugauge", "--ignore-not-found")
    api.kubectl("delete", "priorityclass", "gpugauge", "--ignore-not-found")


def place(target: str) -> list[str]:
    """Return the option with the namespace into which a document applies a folder."""
    names = {"sidecar/podmonitor": "monitoring", "sidecar/job": "training", "sidecar/pod": "training"}
    return [f"--namespace={names[target]}"] if target in names else []


def same(cluster: Cluster, *arguments: str, input: str | None = None) -> str:
    """Return the difference between what was applied and what the server has."""
    return cluster.kubectl("diff", *arguments, input=input, check=False)


@pytest.mark.shows("Check the rendered objects, then apply them")
@pytest.mark.parametrize("target", FOLDERS)
def test_nothing_differs_after_apply(clean: Cluster, target: str) -> None:
    if not of_kind(target, "Namespace"):  # it may go into the namespace of an overlay
        namespace(clean, "gpugauge", "privileged")
    arguments = ["-k", str(FOLDER / target), *place(target)]
    printed = clean.kubectl("apply", *arguments, check=False)

    assert "Warning" not in printed
    assert "rror" not in printed, printed
    assert same(clean, *arguments) == ""
    assert "configured" not in clean.kubectl("apply", *arguments)
    assert "deleted" in clean.kubectl("delete", *arguments, "--ignore-not-found")


@pytest.mark.shows("The chart was rendered by Helm's own code and compared with kustomize")
@pytest.mark.parametrize("target", OVERLAYS)
def test_nothing_differs_after_the_chart(clean: Cluster, target: str) -> None:
    namespace(clean, "gpugauge", "privileged")
    text = chart(OVERLAYS[target])
    clean.kubectl("apply", "-f", "-", input=text)

    assert same(clean, "-f", "-", input=text) == ""
    assert "configured" not in clean.kubectl("apply", "-f", "-", input=text)
    clean.kubectl("delete", "-f", "-", "--ignore-not-found", input=text)


def chart(values: dict[str, Any]) -> str:
    """Return the objects of the chart as one document."""
    made = rendered(values)
    return "\n---\n".join(text for name, text in made.items() if name != "NOTES.txt")


def test_an_upgrade_of_the_chart_replaces_the_pods_and_nothing_else(clean: Cluster) -> None:
    """What an upgrade means for counters: the selector stays, so that the DaemonSet is changed in place."""
    namespace(clean, "gpugauge", "privileged")
    clean.kubectl("apply", "-f", "-", input=chart(PREVIOUS))
    before = clean.get("daemonset", "gpugauge", "-n", "gpugauge")
    clean.kubectl("apply", "-f", "-", input=chart({}))
    after = clean.get("daemonset", "gpugauge", "-n", "gpugauge")

    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert after["spec"]["selector"] == before["spec"]["selector"]


def test_the_larger_overlay_leaves_one_monitor(clean: Cluster) -> None:
    for name in ("standard", "privileged"):
        clean.kubectl("apply", "-k", str(FOLDER / "overlays" / name))

    assert len(clean.items("podmonitors,servicemonitors", "-n", "gpugauge")) == 1


@pytest.mark.shows("Both namespaces must exist; the folders change and delete none.")
@pytest.mark.parametrize(
    ("target", "name"),
    [("sidecar/podmonitor", "monitoring"), pytest.param("sidecar/job", "training", marks=NATIVE_SIDECARS)],
)
def test_a_sidecar_leaves_the_namespace_alone(api: Cluster, target: str, name: str) -> None:
    before = api.get("namespace", name)["metadata"]
    api.kubectl("apply", "-k", str(FOLDER / target), f"--namespace={name}")
    applied = api.get("namespace", name)["metadata"]
    api.kubectl("delete", "-k", str(FOLDER / target), f"--namespace={name}")
    after = api.get("namespace", name)

    assert applied["labels"] == before["labels"]
    assert (after["metadata"]["uid"], after["status"]["phase"]) == (before["uid"], "Active")


@pytest.fixture
def node(api: Cluster) -> Iterator[str]:
    """Return the name of a node with the label of a GPU, which no kubelet serves."""
    labels = {"nvidia.com/gpu.present": "true"}
    apply(api, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nobody", "labels": labels}})
    yield "nobody"
    api.kubectl("delete", "node", "nobody")


@pytest.mark.shows("Without it no pod is created, and only an event at the DaemonSet says why.")
@pytest.mark.parametrize("component", [False, True], ids=["without the component", "with the component"])
def test_without_the_runtime_class(clean: Cluster, node: str, tmp_path: Path, component: bool) -> None:
    chosen = ["components/runtimeclass"] if component else []
    clean.kubectl("apply", "-k", kustomization(tmp_path, "base", *chosen, "image"))

    def pods() -> int:
        return len(clean.items("pods", "-n", "gpugauge"))

    def event() -> str:
        return clean.events("DaemonSet", "gpugauge", "gpugauge")

    until(lambda: pods() or event(), "the DaemonSet does something")

    assert (pods() == 0) is component
    assert ('RuntimeClass "nvidia" not found' in event()) is component


@pytest.mark.shows("It needs the right to list pods.")
def test_rights_of_a_prometheus(api: Cluster) -> None:
    prometheus = "--as=system:serviceaccount:monitoring:prometheus"

    def may(verb: str, resource: str) -> str:
        return api.kubectl("auth", "can-i", verb, resource, "-A", prometheus, check=False).split("\n")[0]

    before = may("list", "pods")
    api.kubectl("apply", "-k", str(FOLDER / "prometheus-rbac"))

    assert (before, may("list", "pods"), may("list", "secrets")) == ("no", "yes", "no")
    api.kubectl("delete", "-k", str(FOLDER / "prometheus-rbac"))


@pytest.mark.shows("a quota on `limits.cpu` admits the pod.")
@pytest.mark.since(1, 29)
@pytest.mark.parametrize("guaranteed", [False, True])
def test_a_quota_on_cpu(api: Cluster, tmp_path: Path, guaranteed: bool) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpu", "namespace": "training"}}
    apply(api, {**quota, "spec": {"hard": {"limits.cpu": "10"}}})
    path = kustomization(tmp_path, "sidecar/pod", *(["sidecar/guaranteed"] if guaranteed else []))
    text = api.kubectl("kustomize", path)
    item = yaml.safe_load(text)
    item["metadata"]["namespace"] = "training"
    item["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    printed = api.kubectl("create", "-f", "-", "--dry-run=server", input=yaml.safe_dump(item), check=False)
    api.kubectl("delete", "resourcequota", "cpu", "-n", "training")

    assert ("must specify limits.cpu" in printed) is not guaranteed
    assert ("created" in printed) is guaranteed


@pytest.mark.shows("the class `system-node-critical` instead, with a quota for it")
def test_the_quota_of_the_critical_class_applies(clean: Cluster, tmp_path: Path) -> None:
    path = kustomization(tmp_path, "base", "components/critical", "image")
    clean.kubectl("apply", "-k", path)

    assert clean.get("resourcequota", "gpugauge-critical", "-n", "gpugauge")["spec"]["hard"]["pods"] == "10k"
    assert same(clean, "-k", path) == ""
