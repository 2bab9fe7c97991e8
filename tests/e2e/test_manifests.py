"""The manifests of deploy/kubernetes, rendered by kubectl: Kubernetes' schemas, and references between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from grafana.build import DASHBOARDS, as_json

from gpugauge.cli import device_plugin
from tests.e2e.manifests import (
    SIDECARS,
    TARGETS,
    VERSIONS,
    Manifest,
    containers,
    matches,
    objects,
    of_kind,
    pods,
    rendered,
    validate,
)

pytestmark = pytest.mark.e2e

CLUSTER_WIDE = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}
OVERLAYS = [target for target in TARGETS if target.startswith("overlays/")]


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "sidecar/podmonitor"])
@pytest.mark.parametrize("version", VERSIONS)
def test_schema(target: str, version: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    # There are no schemas for the operator's kinds; test_monitors checks them.
    known = [item for item in objects(target) if not item["apiVersion"].startswith("monitoring.coreos.com/")]
    file.write_text(yaml.safe_dump_all(known))
    code, output = validate(file, version)

    assert code == 0, output


def test_a_misspelt_key_is_found(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(rendered("base").replace("hostPath:", "hostpath:"))
    code, output = validate(file, VERSIONS[-1])

    assert code != 0
    assert "'hostpath' was unexpected" in output


@pytest.mark.parametrize("target", TARGETS)
def test_names_are_unique_and_in_one_namespace(target: str) -> None:
    items = objects(target)
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    spaces = {item["metadata"].get("namespace") for item in items if item["kind"] not in CLUSTER_WIDE}
    owned = {item["metadata"]["name"] for item in items if item["kind"] == "Namespace"}

    assert len(names) == len(set(names))
    assert len(spaces) <= 1
    assert owned <= spaces


@pytest.mark.parametrize("target", TARGETS)
def test_only_the_overlays_own_a_namespace(target: str) -> None:
    """What is applied to the namespace of a training neither changes nor deletes it."""
    owned = {item["metadata"]["name"] for item in of_kind(target, "Namespace")}
    spaces = {item["metadata"].get("namespace") for item in objects(target) if item["kind"] not in CLUSTER_WIDE}

    assert owned == ({"gpugauge"} if target == "base" or target in OVERLAYS else set())
    assert spaces <= ({None} if target.startswith("sidecar/") else {"gpugauge"})


def test_a_larger_overlay_leaves_nothing_of_the_smaller_one() -> None:
    """No object of `standard` remains that `privileged` does not have: it would be a second target for a pod."""
    small, large = (
        {(item["kind"], item["metadata"]["name"]) for item in objects(f"overlays/{name}")}
        for name in ("standard", "privileged")
    )

    assert small <= large


@pytest.mark.parametrize("target", TARGETS)
def test_every_selector_finds_the_pods(target: str) -> None:
    labels = [meta["labels"] for meta, _ in pods(target)]
    for item in objects(target):
        spec = item.get("spec", {})
        if item["kind"] in {"DaemonSet", "PodMonitor"}:
            selectors = [spec["selector"]["matchLabels"]]
        elif item["kind"] == "Service":
            selectors = [spec["selector"]]
        elif item["kind"] == "NetworkPolicy":
            selectors = [spec["podSelector"]["matchLabels"]]
        else:
            continue
        if labels:  # the monitor of sidecars is rendered without pods; see below
            assert all(any(matches(selector, each) for each in labels) for selector in selectors), item["kind"]
    for monitor in of_kind(target, "ServiceMonitor"):
        services = [item["metadata"]["labels"] for item in of_kind(target, "Service")]
        assert any(matches(monitor["spec"]["selector"]["matchLabels"], each) for each in services)


def test_monitor_of_sidecars_finds_sidecars_and_only_them() -> None:
    (monitor,) = of_kind("sidecar/podmonitor", "PodMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"]
    found = {target: [matches(selector, meta["labels"]) for meta, _ in pods(target)] for target in [*SIDECARS, "base"]}

    assert found == {"sidecar/job": [True], "sidecar/pod": [True], "base": [False]}
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def asked_ports(item: Manifest) -> set[str]:
    """Return the names of the container ports that the object refers to."""
    spec = item.get("spec", {})
    if item["kind"] == "Service":
        return {port["targetPort"] for port in spec["ports"]}
    if item["kind"] == "PodMonitor":
        return {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
    if item["kind"] == "NetworkPolicy":
        return {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
    return set()


@pytest.mark.parametrize("target", TARGETS)
def test_every_named_port_exists(target: str) -> None:
    for _, spec in pods(target):
        for container in containers(spec):
            ports = {port["name"] for port in container.get("ports", [])}
            probes = [container[kind] for kind in container if kind.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes if "exec" not in probe} <= ports
    offered = {port["name"] for _, spec in pods(target) for each in containers(spec) for port in each.get("ports", [])}
    for item in objects(target):
        assert not offered or asked_ports(item) <= offered


@pytest.mark.parametrize("target", TARGETS)
def test_monitors(target: str) -> None:
    """Check the operator's kinds, which have no schema; `instance` is the name of the node."""
    for monitor in of_kind(target, "PodMonitor", "ServiceMonitor"):
        endpoints = "podMetricsEndpoints" if monitor["kind"] == "PodMonitor" else "endpoints"
        assert set(monitor["spec"]) <= {"selector", "namespaceSelector", endpoints}
        (endpoint,) = monitor["spec"][endpoints]
        assert set(endpoint) == {"port", "interval", "scrapeTimeout", "relabelings"}
        assert endpoint["relabelings"] == [
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance", "action": "replace"}
        ]


@pytest.mark.parametrize("target", TARGETS)
def test_volumes_and_mounts_fit(target: str) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(target, "ConfigMap")}
    for _, spec in pods(target):
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounted = [mount["name"] for each in containers(spec) for mount in each.get("volumeMounts", [])]
        assert volumes == set(mounted)
        for container in containers(spec):
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            assert len(paths) == len(set(paths))
        assert {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume} <= maps


def beyond_baseline(spec: Manifest) -> set[str]:
    """Return the fields of a pod that the pod security level `baseline` forbids, of those that our manifests use:
    https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline.
    """
    found = {key for key in ("hostPID", "hostIPC", "hostNetwork") if spec.get(key)}
    found |= {"hostPath" for volume in spec.get("volumes", []) if "hostPath" in volume}
    for container in containers(spec):
        context = container.get("securityContext", {})
        if context.get("privileged"):
            found.add("privileged")
        if set(context.get("capabilities", {}).get("add", [])) - {"CHOWN", "KILL", "NET_BIND_SERVICE", "SETUID"}:
            found.add("capabilities")
        if any("hostPort" in port for port in container.get("ports", [])):
            found.add("hostPort")
        if context.get("seccompProfile", {}).get("type") == "Unconfined":
            found.add("seccompProfile")
    return found


@pytest.mark.parametrize(
    ("target", "needs"),
    [
        ("base", {"hostPath"}),
        ("overlays/standard", {"hostPath", "hostPID", "capabilities"}),
        ("overlays/annotated", {"hostPath", "hostPID", "capabilities"}),
        ("overlays/privileged", {"hostPath", "hostPID", "capabilities", "privileged"}),
        ("overlays/simulated", {"hostPath"}),
        ("uninstall", {"hostPath"}),
        ("sidecar/job", set()),
        ("sidecar/pod", set()),
    ],
)
def test_pod_security_level(target: str, needs: set[str]) -> None:
    ((_, spec),) = pods(target)

    assert beyond_baseline(spec) == needs
    for namespace in of_kind(target, "Namespace"):
        labels = namespace["metadata"]["labels"]
        assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "warn", "audit")} == {"privileged"}


@pytest.mark.parametrize("target", TARGETS)
def test_our_containers_drop_all_rights(target: str) -> None:
    for _, spec in pods(target):
        for container in containers(spec):
            if not container["image"].startswith("gpugauge:"):
                continue
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["allowPrivilegeEscalation"] is bool(context.get("privileged"))
            assert context["runAsUser"] == (65532 if target in SIDECARS else 0)
            assert "memory" in container["resources"]["limits"]


def test_the_overlay_with_a_privileged_container_says_so() -> None:
    privileged = [target for target in TARGETS for _, spec in pods(target) if "privileged" in beyond_baseline(spec)]

    assert privileged == ["overlays/privileged"]


@pytest.mark.parametrize("target", ["overlays/standard", "overlays/annotated", "overlays/privileged"])
def test_only_pods_of_prometheus_may_connect(target: str) -> None:
    kubelet, policy = sorted(of_kind(target, "NetworkPolicy"), key=lambda item: "ingress" in item["spec"])
    (rule,) = policy["spec"]["ingress"]

    # One entry with both selectors: two entries would admit every pod of the namespace.
    assert rule["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        }
    ]
    # Outgoing connections to kubelets only. An empty list is dropped by the server, and a diff would never be empty.
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy["spec"]
    assert kubelet["spec"]["egress"] == [{"ports": [{"port": 10250, "protocol": "TCP"}]}]


@pytest.mark.parametrize("target", ["overlays/standard", "overlays/annotated", "overlays/privileged"])
def test_priority_displaces_no_pod(target: str) -> None:
    ((_, spec),) = pods(target)
    (priority,) = of_kind(target, "PriorityClass")

    assert spec["priorityClassName"] == priority["metadata"]["name"]
    assert priority["preemptionPolicy"] == "Never"
    assert 0 < priority["value"] < 1_000_000_000  # above it only the system's own classes may be


@pytest.mark.parametrize("target", TARGETS)
def test_liveness_does_not_depend_on_the_driver(target: str) -> None:
    probes = [each["livenessProbe"] for _, spec in pods(target) for each in containers(spec) if "livenessProbe" in each]

    assert all(probe["httpGet"]["path"] == "/-/healthy" for probe in probes)


def daemon_of(target: str) -> Manifest:
    ((_, spec),) = pods(target)
    found: list[Manifest] = [each for each in spec["containers"] if each["name"] == "gpugauge"]
    return found[0]


@pytest.mark.parametrize("target", ["base", *OVERLAYS])
def test_the_readiness_probe_waits_for_the_start(target: str) -> None:
    daemon = daemon_of(target)

    assert daemon["startupProbe"]["httpGet"] == daemon["readinessProbe"]["httpGet"]
    assert daemon["startupProbe"]["periodSeconds"] * daemon["startupProbe"]["failureThreshold"] >= 60


@pytest.mark.parametrize("target", ["base", *OVERLAYS])
def test_the_socket_is_in_a_volume(target: str) -> None:
    """The root file system is read-only: without a volume each start would log that no training can report."""
    ((_, spec),) = pods(target)
    (mount,) = [mount for mount in daemon_of(target)["volumeMounts"] if mount["mountPath"] == "/run/gpugauge"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]

    assert "readOnly" not in mount
    assert set(volume) == {"name", "hostPath" if target == "overlays/privileged" else "emptyDir"}


@pytest.mark.parametrize("target", SIDECARS)
def test_hook_and_socket_reach_the_training(target: str) -> None:
    ((_, spec),) = pods(target)
    by_name = {container["name"]: container for container in containers(spec)}
    mounts = {
        name: {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]} for name, each in by_name.items()
    }
    environment = {entry["name"]: entry["value"] for entry in by_name["training"]["env"]}

    assert mounts["gpugauge"]["gpugauge-socket"] == mounts["training"]["gpugauge-socket"] == "/run/gpugauge"
    assert environment["PYTHONPATH"] == f"{mounts['training']['gpugauge-hook']}/gpugauge/hook/bootstrap"
    assert f"launch.export(Path('{mounts['gpugauge-hook']['gpugauge-hook']}'))" in by_name["gpugauge-hook"]["args"][0]
    assert by_name["gpugauge"]["restartPolicy"] == "Always"
    assert {"name": "GPUGAUGE_DRIVER_MODE", "value": "off"} in by_name["gpugauge"]["env"]


def test_device_plugin() -> None:
    """The folders of the command are those of the node, and the daemon's socket is in the one that it hands out."""
    ((_, spec),) = pods("overlays/privileged")
    places = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    (plugin,) = [container for container in spec["containers"] if container["name"] == "device-plugin"]
    mounts = {mount["mountPath"]: places[mount["name"]] for mount in plugin["volumeMounts"]}
    folders = {each.name: each.default for each in device_plugin.command.params}
    (socket,) = [mount for mount in daemon_of("overlays/privileged")["volumeMounts"] if mount["name"] == "socket"]

    assert plugin["args"] == ["device-plugin"]
    # The kubelet takes the paths of mounts as those of the node.
    assert mounts == {folder: folder for folder in (folders["kubelet_folder"], folders["hook_folder"])}
    assert places[socket["name"]] == socket["mountPath"] == folders["socket_folder"]


@pytest.mark.parametrize("target", ["overlays/standard", "overlays/privileged"])
def test_dashboards(target: str) -> None:
    """Each dashboard is there once, unchanged, and small enough for the annotation of kubectl apply."""
    maps = [item for item in of_kind(target, "ConfigMap") if "grafana_dashboard" in item["metadata"].get("labels", {})]
    found = {file: text for item in maps for file, text in item["data"].items()}

    assert found == {f"{name}.json": as_json(name) for name in DASHBOARDS}
    assert {item["metadata"]["labels"]["grafana_dashboard"] for item in maps} == {"1"}
    assert max(len(json.dumps(item)) for item in maps) < 256 * 1024
