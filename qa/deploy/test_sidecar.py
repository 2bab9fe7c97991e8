"""The Pod with the sidecar of deploy/kubernetes, run by podman with a real training, and scraped."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.documents import ROOT
from tests.e2e.manifests import of_kind
from tests.e2e.programs import free_port, prometheus, wait_for

from qa.deploy.containers import Podman, podman

pytestmark = pytest.mark.deploy

SMALL = ROOT / "tests/e2e/workloads/small.py"
SECONDS = 15
PODS_OWN = {"namespace": "training", "name": "train", "uid": "8d0a9a33-5f6e-4a0d-9a53-0f4a7a9f5d0e", "labels": ""}


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Return podman with the image, built on a base without build tools."""
    with podman(tmp_path_factory.mktemp("podman")) as runner:
        runner.build("gpugauge", BASE_IMAGE="localhost/base:1", BUILD_IMAGE="localhost/build:1", VERSION="1.2.3")
        yield runner


def for_podman(pod: dict[str, Any], port: int, out: Path) -> dict[str, Any]:
    """Return the Pod in a form that Podman 4.3 can run without a network for containers.

    Containers, users, rights, mounts and variables are unchanged.
    """
    spec = pod["spec"]
    initial, sidecar = spec["initContainers"]
    (training,) = spec["containers"]
    # Podman has no native sidecars: it waits for the end of each init container.
    del sidecar["restartPolicy"]
    spec["initContainers"], spec["containers"] = [initial], [sidecar, training]
    for container in (initial, sidecar):
        container["image"] = "localhost/gpugauge:latest"
    # All containers share the network of the host.
    sidecar["env"].append({"name": "GPUGAUGE_WEB_LISTEN_ADDRESS", "value": f"127.0.0.1:{port}"})
    del sidecar["ports"], sidecar["startupProbe"], sidecar["livenessProbe"]
    # In Podman an emptyDir belongs to the user of the first container; with the kubelet every user may write to it.
    for volume in spec["volumes"]:
        folder = out / volume["name"]
        folder.mkdir()
        folder.chmod(0o777)
        # Podman has no downward API: the files that the kubelet would write.
        for item in volume.pop("downwardAPI", {}).get("items", []):
            (folder / item["path"]).write_text(PODS_OWN[item["path"]])
        volume.pop("emptyDir", None)
        volume["hostPath"] = {"path": str(folder), "type": "Directory"}
    # The training: this machine's Python and torch in an image without gpugauge.
    training |= {"image": "localhost/base:1", "command": [sys.executable, "/small/small.py", str(SECONDS), "/out/out"]}
    del training["resources"]
    places = {"small": SMALL.parent, "out": out, "python": sys.prefix, "base": sys.base_prefix}
    for name, place in places.items():
        if str(place).startswith("/usr"):
            continue
        spec["volumes"].append({"name": name, "hostPath": {"path": str(place), "type": "Directory"}})
        inside = {"small": "/small", "out": "/out"}.get(name, str(place))
        training["volumeMounts"].append({"name": name, "mountPath": inside, "readOnly": name != "out"})
    spec["hostNetwork"] = True
    return pod


def test_prometheus_counts_the_steps_of_a_training_with_a_sidecar(engine: Podman, tmp_path: Path) -> None:
    (pod,) = of_kind("sidecar/pod", "Pod")
    port, out = free_port(), tmp_path / "out"
    out.mkdir()
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(for_podman(pod, port, out)))
    with prometheus(tmp_path, f"127.0.0.1:{port}") as server:
        engine("play", "kube", "--network=host", str(file))
        status = engine.out("exec", "train-gpugauge", "cat", "/proc/1/status")
        mode = wait_for(lambda: server.query("gpugauge_driver_up"), 20, "Prometheus has scraped the sidecar")
        engine("wait", "train-training")
        counted = json.loads((out / "out").read_text())["steps"]
        wait_for(lambda: server.value("torch_steps_total") == counted, 20, "Prometheus has the last step")

    assert counted > 0
    assert mode[0]["metric"]["reason"] == "off"
    assert re.findall(r"^Uid:\s+(\d+)", status, re.MULTILINE) == ["65532"]
    assert {int(mask, 16) for mask in re.findall(r"^Cap\w+:\s+(\w+)", status, re.MULTILINE)} == {0}
