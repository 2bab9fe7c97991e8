"""The Helm chart, rendered by Helm's own code: its objects are those of kustomize, its values are checked."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.settings.options import walk
from tests import needs
from tests.e2e.daily import share
from tests.e2e.documents import ROOT
from tests.e2e.manifests import VERSIONS, Manifest, objects, validate
from tests.e2e.test_manifest_components import with_components

pytestmark = pytest.mark.e2e

CHART, KUBERNETES = ROOT / "deploy" / "helm" / "gpugauge", ROOT / "deploy" / "kubernetes"
OPERATOR = {"monitor": {"kind": "podMonitor"}, "rules": {"enabled": True}, "dashboards": {"enabled": True}}
# The values that give the objects of an overlay.
OVERLAYS: dict[str, dict[str, Any]] = {
    "overlays/annotated": {},
    "overlays/standard": OPERATOR,
    "overlays/privileged": {**OPERATOR, "kernelLog": True, "hookInjection": True, "gpuOperator": True},
    "overlays/simulated": {
        "simulate": "node",
        "processes": False,
        "state": False,
        "priorityClassName": "",
        "networkPolicy": {"enabled": False},
    },
}
Objects = dict[tuple[str, str], Manifest]


def rendered(values: Mapping[str, Any], chart: Path = CHART) -> dict[str, str]:
    """Return the text of each template. Raises HelmError."""
    with needs.helm().Chart.load(str(chart)) as loaded:
        made: dict[str, str] = loaded.render(values=dict(values), name="release", namespace="gpugauge")
    return {Path(path).name: text for path, text in made.items()}


def made(values: Mapping[str, Any]) -> Objects:
    """Return the objects, without the labels of the release."""
    found = [
        item
        for name, text in rendered(values).items()
        if name != "NOTES.txt"
        for item in yaml.safe_load_all(text.replace("kubelet-pods-gpugauge-release", "kubelet-pods"))
        if item
    ]
    for item in found:
        labels = item["metadata"]["labels"]
        assert labels.pop("helm.sh/chart") == "gpugauge-0.2.0"
        assert labels.pop("app.kubernetes.io/instance") == "release"
        assert labels.pop("app.kubernetes.io/managed-by") == "Helm"
        del labels["app.kubernetes.io/version"]
    return by_name(found)


def by_name(items: list[Manifest]) -> Objects:
    """Return the objects in a form that can be compared: the order of named entries of lists does not matter."""
    named = {(item["kind"], item["metadata"]["name"]): ordered(item) for item in items if item["kind"] != "Namespace"}
    assert len(named) == sum(item["kind"] != "Namespace" for item in items)
    for item in named.values():
        # Every object of the chart has this label; of kustomize's, those that something selects.
        item["metadata"].setdefault("labels", {})["app.kubernetes.io/name"] = "gpugauge"
    return named


def ordered(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: ordered(each, name) for name, each in value.items()}
    if isinstance(value, list):
        each = [ordered(item) for item in value]
        name = {"volumeMounts": "mountPath", "containers": "name", "volumes": "name", "env": "name"}.get(key)
        return sorted(each, key=lambda item: str(item[name])) if name else each
    return value


@pytest.mark.parametrize("target", OVERLAYS)
def test_the_objects_are_those_of_the_overlay(target: str) -> None:
    assert made(OVERLAYS[target]) == by_name(objects(target))


# The value that chooses each component.
CHOICES: dict[str, dict[str, Any]] = {
    "runtimeclass": {"runtimeClassName": "nvidia"},
    "hostpid": {"processes": True},
    "state": {"state": True},
    "kmsg": {"kernelLog": True},
    "kubelet-pods": {"kubeletPods": True},
    "kubelet-ca": {"kubeletCaFile": "/var/lib/kubelet/pki/kubelet.crt"},
    "device-plugin": {"hookInjection": True},
    "gpu-operator": {"gpuOperator": True},
    "critical": {"priorityClassName": "system-node-critical"},
    "networkpolicy": {"networkPolicy": {"enabled": True}},
    "servicemonitor": {"monitor": {"kind": "serviceMonitor"}},
    "tls": {"tls": {"secretName": "gpugauge-web"}},
}
NOTHING: dict[str, Any] = {
    "kubeletPods": False,
    "runtimeClassName": "",
    "processes": False,
    "state": False,
    "priorityClassName": "",
    "networkPolicy": {"enabled": False},
    "monitor": {"kind": "none"},
}


@settings(max_examples=share(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.frozensets(st.sampled_from(sorted(CHOICES))))
def test_any_choice_of_components_gives_what_kustomize_gives(
    tmp_path_factory: pytest.TempPathFactory, names: frozenset[str]
) -> None:
    values = dict(NOTHING)
    for name in names:
        values |= CHOICES[name]
    folders = [f"components/{name}" for name in CHOICES if name in names] + ["image"]
    expected = by_name(with_components(tmp_path_factory.mktemp("choice"), "base", *folders))
    if {"tls", "servicemonitor"} <= names:  # as the component's comment says
        for kind, item in expected.items():
            if kind[0] == "ServiceMonitor":
                item["spec"]["endpoints"][0]["scheme"] = "https"
    # The overlays name the namespace also for what a component adds; this folder does not.
    for kind, item in expected.items():
        if kind[0] not in {"PriorityClass", "ClusterRole", "ClusterRoleBinding"}:
            item["metadata"]["namespace"] = "gpugauge"

    assert made(values) == expected


@settings(max_examples=share(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 999), st.integers(0, 999))
def test_the_thresholds_are_those_of_the_rules_command(threshold: int, critical: int) -> None:
    assume(critical < threshold)
    parameters = Parameters(threshold=threshold / 1000, critical=critical / 1000 or None)
    values = {"rules": {"enabled": True, "threshold": threshold / 1000, "critical": critical / 1000}}
    (rule,) = [item for (kind, _), item in made(values).items() if kind == "PrometheusRule"]

    assert rule["spec"] == yaml.safe_load(rules.FORMATS["kubernetes"](parameters))["spec"]


def test_the_settings_of_the_daemon_are_variables() -> None:
    values = {"hook.linger_seconds": 60, "driver.worker_max_bytes": 1073741824, "log.format": "json"}
    values |= {"sampling.interval_seconds": 0.5, "web.enable_lifecycle": True}
    chosen = {"settings": values, "kubeletPods": False, "kubeletCaFile": "/own.crt"}
    ((_, item),) = [each for each in made(chosen).items() if each[0][0] == "DaemonSet"]
    (daemon,) = item["spec"]["template"]["spec"]["containers"]

    assert {entry["name"]: entry["value"] for entry in daemon["env"] if "value" in entry} == {
        "GPUGAUGE_HOOK_LINGER_SECONDS": "60",
        "GPUGAUGE_KUBERNETES_KUBELET_CA_FILE": "/etc/gpugauge/kubelet.crt",
        "GPUGAUGE_DRIVER_WORKER_MAX_BYTES": "1073741824",
        "GPUGAUGE_LOG_FORMAT": "json",
        "GPUGAUGE_SAMPLING_INTERVAL_SECONDS": "0.5",
        "GPUGAUGE_WEB_ENABLE_LIFECYCLE": "true",
    }
    assert {each.environment for each in walk()} >= {entry["name"] for entry in daemon["env"]}
    places = {each["mountPath"]: each["name"] for each in daemon["volumeMounts"]}
    volumes = {each["name"]: each for each in item["spec"]["template"]["spec"]["volumes"]}
    assert volumes[places["/etc/gpugauge/kubelet.crt"]]["hostPath"] == {"path": "/own.crt", "type": "File"}
    # Two releases in one cluster do not share it.
    assert rendered({"kubeletPods": True})["base.yaml"].count("kubelet-pods-gpugauge-release") == 3


@pytest.mark.parametrize(("version", "asks"), [("v1.32.9", False), ("v1.33.0-gke.1", True), ("v1.34.1+k3s1", True)])
def test_kubelets_are_asked_where_the_right_for_pods_alone_suffices(tmp_path: Path, version: str, asks: bool) -> None:
    shutil.copytree(CHART, tmp_path / "gpugauge")
    helpers = tmp_path / "gpugauge" / "templates" / "_helpers.tpl"
    text = helpers.read_text()
    helpers.write_text(text.replace(".Capabilities.KubeVersion.Version", f'"{version}"'))
    made = rendered({}, tmp_path / "gpugauge")["base.yaml"]

    assert text.count(".Capabilities.KubeVersion.Version") == 1
    assert ("nodes/pods" in made) is asks
    assert "nodes/pods" in rendered({"kubeletPods": True}, tmp_path / "gpugauge")["base.yaml"]


def test_other_values_reach_the_pod() -> None:
    everything = {"operator": "Exists"}
    values = {
        "image": {"repository": "registry.example/g", "digest": f"sha256:{'a' * 64}", "pullSecrets": ["key"]},
        "tolerations": [everything],
        "affinity": {"podAffinity": {}},
        "nodeSelector": {"pool": "gpu"},
        "podLabels": {"team": "ml", "app.kubernetes.io/name": "other"},
        "podAnnotations": {"a": "b"},
        "resources": {"limits": {"memory": "1Gi"}},
        "hookInjection": True,
        "runtimeClassName": "own",
        "priorityClassName": "mine",
        "gpuOperator": True,
        "monitor": {"kind": "podMonitor", "labels": {"release": "prom"}, "interval": "30s"},
        "networkPolicy": {"from": [{"podSelector": {}}]},
    }
    found = made(values)
    pod = found["DaemonSet", "gpugauge"]["spec"]["template"]
    plugin, daemon = pod["spec"]["containers"]
    monitor, policy = found["PodMonitor", "gpugauge"], found["NetworkPolicy", "gpugauge"]

    assert {plugin["image"], daemon["image"]} == {f"registry.example/g@sha256:{'a' * 64}"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "key"}]
    assert pod["spec"]["tolerations"] == [everything]
    assert pod["spec"]["affinity"] == {"podAffinity": {}}
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu", "nvidia.com/gpu.deploy.dcgm-exporter": "true"}
    # The selector's own labels cannot be replaced.
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "gpugauge"
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert daemon["resources"] == {"limits": {"memory": "1Gi"}} != plugin["resources"]
    assert pod["spec"]["runtimeClassName"] == "own"
    assert pod["spec"]["priorityClassName"] == "mine"
    assert ("PriorityClass", "gpugauge") not in found
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "30s"
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"simulat": "node"}, "simulat"),
        ({"processes": "yes"}, "processes"),
        ({"image": {"digest": "sha256:1"}}, "digest"),
        ({"monitor": {"kind": "operator"}}, "kind"),
        ({"rules": {"threshold": 80}}, "threshold"),
        ({"settings": {"hook.lingr_seconds": 1}}, "hook.lingr_seconds"),
        ({"tls": "secret"}, "tls"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], message: str) -> None:
    report = needs.helm().lint(str(CHART), values)
    text = "\n".join([*report["errors"], *[each["error"] for each in report["messages"] if each["severity"] == 3]])

    assert message in text


def test_thresholds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(needs.helm().HelmError, match=r"rules\.critical must be below rules\.threshold"):
        rendered({"rules": {"enabled": True, "threshold": 0.4, "critical": 0.4}})


@pytest.mark.parametrize("target", OVERLAYS)
def test_lint_finds_nothing(target: str) -> None:
    report = needs.helm().lint(str(CHART), OVERLAYS[target], strict=True)

    assert report["errors"] == []
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("target", OVERLAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_schema_of_kubernetes(target: str, version: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    known = [item for item in made(OVERLAYS[target]).values() if not item["apiVersion"].startswith("monitoring.")]
    file.write_text(yaml.safe_dump_all(known))
    code, output = validate(file, version)

    assert code == 0, output


def test_each_value_is_described_by_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Mapping[str, Any], described: Mapping[str, Any], path: str) -> None:
        assert described["additionalProperties"] is False, path
        assert described["properties"].keys() - {"global"} == values.keys(), path
        for key, value in values.items():
            inner = described["properties"][key]
            if isinstance(value, dict) and "properties" in inner and value:
                compare(value, inner, f"{path}.{key}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


def test_the_package_has_what_the_templates_read_and_no_links(tmp_path: Path) -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    folders = [f"components/{name}" for name in re.findall(r'append \$components "([\w-]+)"', helpers)]
    applied = [path for folder in ("base", *folders) for path in (KUBERNETES / folder).glob("*.yaml")]
    expected = {
        "prometheusrule.yaml": (ROOT / "deploy" / "prometheus" / "prometheusrule.yaml").read_bytes(),
        **{f"dashboards/{path.name}": path.read_bytes() for path in (ROOT / "grafana").glob("*.json")},
        **{str(path.relative_to(KUBERNETES)): path.read_bytes() for path in applied},
    }
    unread = {path for path in expected if Path(path).name in {"kustomization.yaml", "namespace.yaml"}}

    with tarfile.open(needs.helm().package(CHART, destination=tmp_path)) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "gpugauge" / "files"
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert len(folders) == 16
    assert all(member.isreg() for member in members)
    assert found == {path: content for path, content in expected.items() if path not in unread}


def test_a_chart_without_its_links_says_so(tmp_path: Path) -> None:
    """Some programs that take a chart from a repository leave links out."""
    shutil.copytree(CHART, tmp_path / "gpugauge", symlinks=True)
    for link in (tmp_path / "gpugauge" / "files").iterdir():
        link.unlink()

    with pytest.raises(needs.helm().HelmError, match="make release-chart"):
        rendered({}, tmp_path / "gpugauge")


def test_the_notes_say_what_to_do_next() -> None:
    simulated, hooked = rendered({"simulate": "node"})["NOTES.txt"], rendered({"hookInjection": True})["NOTES.txt"]

    assert "SIMULATED" in simulated
    assert "RuntimeClass" not in simulated
    assert "gpugauge.dev/hook: 1" in hooked
    assert "RuntimeClass nvidia" in hooked
    assert "pod-security.kubernetes.io/enforce=privileged" in hooked
