"""Stage `hook`: the device plugin gives the hook to pods of two real kubelets."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.e2e.test_manifests import beyond_baseline

from qa.cluster import gpus
from qa.cluster.cluster import NODES, Cluster, until
from qa.cluster.installed import daemon_pods, log, metrics, phase
from qa.cluster.objects import PYTHON, TRAINING_ENV, apply, namespace, pod

pytestmark = pytest.mark.cluster

DRAWN = 4
# What a program of the pod sees. `own` is a module of the pod's PYTHONPATH.
LOOK = """
import importlib.util, json, os, subprocess, sys
child = subprocess.run([sys.executable, "-c", "import sys; print('gpugauge.hook' in sys.modules)"],
                       capture_output=True, text=True)
print(json.dumps({
    "hook": any(name.startswith("gpugauge") for name in sys.modules),
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "MARK", None),
    "usercustomize": getattr(sys.modules.get("usercustomize"), "MARK", None),
    "first": sys.path[1] if len(sys.path) > 1 else None,
    "own": importlib.util.find_spec("own") is not None,
    "base": os.environ.get("PYTHONUSERBASE"),
    "uid": os.getuid(),
    "socket": os.path.exists("/run/gpugauge/hook.sock"),
    "child": child.stdout.strip(),
}))
"""


@pytest.fixture(scope="module", params=["baseline", "restricted"])
def space(request: pytest.FixtureRequest, installed: Cluster) -> str:
    """Return a namespace at a pod security level, enforced where the server knows it (1.25)."""
    return namespace(installed, f"training-{request.param}", request.param)


def result(cluster: Cluster, name: str, space: str) -> Any:
    """Return what a pod printed as JSON, when it has ended well."""
    ended = until(lambda: phase(cluster, name, space) in {"Succeeded", "Failed"}, f"{name} ends")
    printed = log(cluster, name, space)
    assert ended
    assert phase(cluster, name, space) == "Succeeded", printed
    return json.loads(printed.splitlines()[-1])


def test_pods_start_without_a_complaint(installed: Cluster) -> None:
    """No failed probe after the start, no warning about the hook's socket, on each node."""
    pods = daemon_pods(installed)
    for each in pods.values():
        assert "ness probe failed" not in installed.events("Pod", each["metadata"]["name"], "gpugauge")
        assert "cannot report" not in log(installed, each["metadata"]["name"], "gpugauge", "gpugauge")

    assert pods.keys() == NODES.keys()


def drawn(rng: random.Random) -> dict[str, Any]:
    """Return features of a pod: user, own PYTHONPATH, own sitecustomize, own PYTHONUSERBASE."""
    return {
        "user": rng.choice([1, 1000, 1234, 65534, rng.randrange(2, 2**31)]),
        "path": rng.random() < 0.7,
        "sitecustomize": rng.random() < 0.6,
        "node": rng.choice(list(NODES)),
    }


@pytest.mark.shows(
    "This holds for every user id, and the image contains no part of gpugauge.",
    "`PYTHONPATH` and `sitecustomize` stay those of the image and of the pod.",
    "`PYTHONUSERBASE` from the process",
)
def test_any_pod_gets_the_hook_and_keeps_its_own(installed: Cluster, space: str) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    print(f"seed {seed}")
    files = {"own.py": "", "sitecustomize.py": "MARK = 'of the pod'\n", "look.py": LOOK}
    apply(
        installed,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own", "namespace": space}, "data": files},
    )
    chosen = {f"drawn-{number}": drawn(rng) for number in range(DRAWN)}
    for name, each in chosen.items():
        items = [{"key": "look.py", "path": "look.py"}, {"key": "own.py", "path": "path/own.py"}]
        items += [{"key": "sitecustomize.py", "path": "path/sitecustomize.py"}] if each["sitecustomize"] else []
        volume = {"name": "own", "configMap": {"name": "own", "items": items}}
        env = {"PYTHONPATH": "/own/path"} if each["path"] else {}
        mount = {"name": "own", "mountPath": "/own", "readOnly": True}
        made = pod(
            name, space, ["python3", "/own/look.py"],
            env=env, user=each["user"], node=each["node"], volumes=[volume], mounts=[mount],
        )  # fmt: skip
        apply(installed, made)
    seen = {name: result(installed, name, space) for name in chosen}
    specs = {name: installed.get("pod", name, "-n", space)["spec"] for name in chosen}
    installed.kubectl("delete", "pods", "--all", "-n", space, "--wait=false")

    for name, each in chosen.items():
        expected = {
            "hook": True,
            "sitecustomize": "of the pod" if each["path"] and each["sitecustomize"] else seen[name]["sitecustomize"],
            "own": each["path"],
            "base": None,
            "uid": each["user"],
            "socket": True,
        }
        assert {key: seen[name][key] for key in expected} == expected, (seed, each)
        assert beyond_baseline(specs[name]) == set()


@pytest.mark.shows("A container asks for it as for a GPU, and then reports to the node's DaemonSet")
def test_a_training_reports_to_the_daemon_of_its_node(installed: Cluster, space: str) -> None:
    ended = len(metrics(installed, "gpu-2", "torch_steps_total"))  # series of trainings before it linger
    script = f"{PYTHON} {gpus.WORKLOADS}/small.py 15 /tmp/out && cat /tmp/out"
    made = pod("real", space, ["sh", "-c", script], env=TRAINING_ENV, gpus=1, node="gpu-2")
    apply(installed, made)
    until(lambda: len(metrics(installed, "gpu-2", "torch_steps_total")) > ended, "the training is in the metrics")
    counted = result(installed, "real", space)["steps"]
    until(lambda: counted in [value for _, value in metrics(installed, "gpu-2", "torch_steps_total")], "all steps")
    elsewhere = metrics(installed, "gpu-1", "torch_steps_total")
    installed.kubectl("delete", "pod", "real", "-n", space)

    assert counted > 0
    assert elsewhere == []


@pytest.mark.shows(
    "On a node without the plugin such a pod is not scheduled; its event is `Insufficient gpugauge.dev/hook`."
)
def test_a_node_without_the_plugin(installed: Cluster) -> None:
    space = namespace(installed, "elsewhere")
    installed.kubectl("label", "node", "gpu-1", "nvidia.com/gpu.present=false", "--overwrite")
    try:
        until(lambda: "gpu-1" not in daemon_pods(installed), "the DaemonSet has left the node")
        offered = until(lambda: _offered(installed, "gpu-1") == "0", "the kubelet has noticed")
        apply(installed, pod("waits", space, ["true"], node="gpu-1"))
        event = until(lambda: installed.events("Pod", "waits", space), "an event")
    finally:
        installed.kubectl("label", "node", "gpu-1", "nvidia.com/gpu.present=true", "--overwrite")
    # The plugin comes back, and the pod runs.
    until(lambda: phase(installed, "waits", space) == "Succeeded", "the pod runs when the plugin is back")

    assert offered
    assert "Insufficient gpugauge.dev/hook" in event


def _offered(cluster: Cluster, node: str) -> str:
    found: str = cluster.get("node", node)["status"]["allocatable"].get("gpugauge.dev/hook", "0")
    return found
