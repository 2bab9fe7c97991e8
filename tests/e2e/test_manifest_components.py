"""What the components of deploy/kubernetes change, the image in one place, and what removing gpugauge leaves."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from gpugauge.simulator.simulation import Simulation
from tests.e2e.manifests import FOLDER, SIDECARS, TARGETS, Manifest, containers, load_all, of_kind, pods, rendered
from tests.needs import need

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_is_set_in_one_place(target: str, tmp_path: Path) -> None:
    """Another image in image/kustomization.yaml is that of every container of ours, also of those in components."""
    copy = tmp_path / "deploy"
    shutil.copytree(FOLDER.parent, copy)
    shutil.copytree(FOLDER.parents[1] / "grafana", tmp_path / "grafana")
    file = copy / "kubernetes" / "image" / "kustomization.yaml"
    file.write_text(file.read_text().replace("newName: gpugauge", "newName: registry.example/gpugauge"))
    command = [need("kubectl"), "kustomize", str(copy / "kubernetes" / target)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, after = (re.findall(r"image: (\S+)", text) for text in (rendered(target), made))

    assert after == [image.replace("gpugauge:", "registry.example/gpugauge:") for image in before]


def with_components(folder: Path, resource: str, *components: str) -> list[Manifest]:
    """Return the objects of a folder of deploy/kubernetes with further components."""
    up = Path(*[".."] * len(folder.parts[1:])) / FOLDER.relative_to("/")
    document = {"resources": [str(up / resource)], "components": [str(up / each) for each in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    text = subprocess.run(
        [need("kubectl"), "kustomize", str(folder)], check=True, capture_output=True, text=True
    ).stdout
    return load_all(text)


@pytest.mark.parametrize("target", SIDECARS)
def test_a_guaranteed_pod_stays_guaranteed(target: str, tmp_path: Path) -> None:
    """Kubernetes' rule: each container, also an initial one, has requests and limits of CPU and memory, and they are
    equal: https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/#guaranteed.
    """
    (item,) = with_components(tmp_path, target, "sidecar/guaranteed")
    ours = (item if item["kind"] == "Pod" else item["spec"]["template"])["spec"]["initContainers"]

    assert len(ours) == 2
    for container in ours:
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}
        assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize("target", SIDECARS)
def test_the_first_startup_probe_of_a_sidecar_succeeds(target: str) -> None:
    """Each failure would be an event of the pod, so the probe waits until the daemon is ready."""
    ((_, spec),) = pods(target)
    (probe,) = [each["startupProbe"] for each in spec["initContainers"] if "startupProbe" in each]
    *_, program = probe["exec"]["command"]
    with socket.socket() as daemon:
        daemon.settimeout(20)
        daemon.bind(("127.0.0.1", 0))  # connections are refused
        command = [sys.executable, "-I", "-c", program.replace("10478", str(daemon.getsockname()[1]))]
        with subprocess.Popen(command) as probing:
            try:
                time.sleep(1)
                daemon.listen()
                for status in ("503 Service Unavailable", "200 OK"):
                    connection, _ = daemon.accept()
                    with connection:
                        assert connection.recv(4096).startswith(b"GET /-/ready ")
                        connection.sendall(f"HTTP/1.0 {status}\r\n\r\n".encode())
                assert probing.wait(20) == 0
            finally:
                probing.kill()


@pytest.mark.parametrize("target", ["overlays/standard", "overlays/privileged"])
def test_components_for_full_and_tainted_nodes_and_without_a_runtime_class(target: str, tmp_path: Path) -> None:
    made = with_components(tmp_path, target, "components/critical", "components/tolerations")
    (spec,) = [item["spec"]["template"]["spec"] for item in made if item["kind"] == "DaemonSet"]
    ((_, base),) = pods("base")
    ((_, before),) = pods(target)

    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert before["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in base


def test_simulated_gpus_need_no_gpu() -> None:
    ((_, spec),) = pods("overlays/simulated")
    (container,) = spec["containers"]
    (setting,) = (variable for variable in container["env"] if variable["name"] == "GPUGAUGE_SIMULATE")

    assert "runtimeClassName" not in spec
    assert "affinity" not in spec
    with ExitStack() as stack:
        assert Simulation(setting["value"], stack).scenario.name == setting["value"]
    assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]


def test_the_removal_covers_every_folder_of_the_node_that_a_component_writes() -> None:
    ((_, remover),) = pods("uninstall")
    emptied = {volume["hostPath"]["path"] for volume in remover["volumes"]}
    written = set()
    for file in (FOLDER / "components").glob("*/daemonset.yaml"):
        spec = yaml.safe_load(file.read_text())["spec"]["template"].get("spec", {})
        places = {each["name"]: each["hostPath"]["path"] for each in spec.get("volumes", []) if "hostPath" in each}
        mounts = [mount for each in containers({"containers": [], **spec}) for mount in each.get("volumeMounts", [])]
        written |= {places[mount["name"]] for mount in mounts if mount["name"] in places and not mount.get("readOnly")}

    assert written >= {"/etc/cdi", "/var/lib/kubelet/seccomp"}
    assert [path for path in written if not any(Path(path).is_relative_to(folder) for folder in emptied)] == []


def test_the_removal_leaves_no_file_of_ours_and_every_other(tmp_path: Path) -> None:
    ((_, spec),) = pods("uninstall")
    (remover,) = spec["initContainers"]
    ours = ["cdi/gpugauge.json", "seccomp/gpugauge.json", "plugins/gpugauge.sock", "run/hook.sock", "lib/hook/a/b.py"]
    others = ["cdi/nvidia.yaml", "seccomp/other.json", "plugins/kubelet.sock", "plugins/nvidia-gpu.sock"]
    for name in [*ours, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    program = remover["args"][0].replace("/node", str(tmp_path))
    for _ in range(2):  # also where nothing is left to remove
        subprocess.run([sys.executable, "-I", "-c", program], check=True)

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(others)


def test_a_prometheus_without_operator_may_find_the_pods_and_nothing_else() -> None:
    (role,) = of_kind("prometheus-rbac", "ClusterRole")
    (binding,) = of_kind("prometheus-rbac", "ClusterRoleBinding")

    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_hook_by_cdi(tmp_path: Path) -> None:
    """The CDI description and the DaemonSet name the same folders."""
    made = with_components(tmp_path, "base", "components/cdi")
    (spec,) = [item["spec"]["template"]["spec"] for item in made if item["kind"] == "DaemonSet"]
    places = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    (config,) = [item for item in made if item["kind"] == "ConfigMap"]
    cdi = json.loads(config["data"]["gpugauge.json"])
    edits = cdi["devices"][0]["containerEdits"]
    by_target = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}

    assert places["cdi"] == "/etc/cdi"
    assert by_target == {"/opt/gpugauge-hook": places["hook"], "/run/gpugauge": places["socket"]}
    assert edits["env"] == ["PYTHONPATH=/opt/gpugauge-hook/gpugauge/hook/bootstrap"]
    assert (
        f"--device {cdi['kind']}={cdi['devices'][0]['name']} "
        in (FOLDER / "components/cdi/kustomization.yaml").read_text()
    )
