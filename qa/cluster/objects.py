"""What the tests apply: folders of deploy/kubernetes, the chart, pods and jobs of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.manifests import FOLDER

from qa.cluster import gpus
from qa.cluster.cluster import Cluster, programs
from qa.cluster.images import BASE

Object = dict[str, Any]
# Where a pod with a GPU has Python, torch and the trainings of the tests (gpus.py). It is the first Python of the
# container and not that of a virtual environment, which has no user base.
PYTHON, PACKAGES = f"{gpus.PYTHON}/bin/python3", gpus.PACKAGES
TRAINING_ENV = {"PYTHONPATH": f"{PACKAGES}:{gpus.WORKLOADS.removesuffix('/tests/e2e/workloads')}"}
# The pod security level `restricted`.
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def kustomization(folder: Path, resource: str, *components: str) -> str:
    """Write a kustomization with further components into the folder, and return its path."""
    up = Path(*[".."] * len(folder.parts[1:])) / FOLDER.relative_to("/")
    document = {"namespace": "gpugauge", "resources": [str(up / resource)]}
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({**document, "components": [str(up / each) for each in components]})
    )
    return str(folder)


def namespace(cluster: Cluster, name: str, level: str = "restricted") -> str:
    """Make a namespace that enforces a pod security level, and return its name."""
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn", "audit")}
    apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    return name


def apply(cluster: Cluster, *objects: Mapping[str, Any]) -> str:
    """Apply objects as one document, and return what kubectl prints."""
    return cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))


def definitions() -> list[Object]:
    """Return the CRDs of the Prometheus operator: its own where build.sh could get them, else ones that accept all."""
    folder = programs() / "crds"
    if folder.is_dir():
        return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
    ]


def pod(name: str, namespace: str, command: list[str], **extra: Any) -> Object:
    """Return a pod at the level `restricted` that asks for a GPU and the hook. `extra`: env, user, gpus, node, volumes,
    mounts, hook.
    """
    limits = {
        **({"gpugauge.dev/hook": 1} if extra.get("hook", True) else {}),
        **({"nvidia.com/gpu": extra["gpus"]} if extra.get("gpus") else {}),
    }
    container = {
        "name": "training",
        "image": BASE,
        "command": command,
        "env": [{"name": key, "value": value} for key, value in extra.get("env", {}).items()],
        "resources": {"limits": limits},
        "securityContext": {**RESTRICTED, "runAsUser": extra.get("user", 1234)},
        "volumeMounts": extra.get("mounts", []),
    }
    spec: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": extra.get("volumes", []),
    }
    if "node" in extra:
        spec["nodeSelector"] = {"kubernetes.io/hostname": extra["node"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
