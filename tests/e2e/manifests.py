"""The manifests of deploy/kubernetes as kubectl renders them, and Kubernetes' own schemas."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.e2e.documents import ROOT
from tests.needs import need

FOLDER = ROOT / "deploy" / "kubernetes"
# Kustomizations that are applied; components are part of them.
TARGETS = sorted(
    str(path.parent.relative_to(FOLDER))
    for path in FOLDER.rglob("kustomization.yaml")
    if yaml.safe_load(path.read_text())["kind"] == "Kustomization"
)
SIDECARS = ["sidecar/job", "sidecar/pod"]
VERSIONS = ["1.29", "1.32", "1.35"]
Manifest = dict[str, Any]


@functools.cache
def rendered(target: str) -> str:
    command = [need("kubectl"), "kustomize", str(FOLDER / target)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def objects(target: str) -> list[Manifest]:
    """Return the rendered objects, which the caller may change."""
    return copy.deepcopy(_loaded(target))


@functools.cache  # a quarter of a million characters of dashboards
def _loaded(target: str) -> list[Manifest]:
    return load_all(rendered(target))


def load_all(text: str) -> list[Manifest]:
    """Return the objects of a text that are not empty, by libyaml, which takes a tenth of the time."""
    return [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]


def of_kind(target: str, *kinds: str) -> list[Manifest]:
    return [item for item in objects(target) if item["kind"] in kinds]


def pods(target: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Yield metadata and spec of each pod and each pod template."""
    for item in of_kind(target, "DaemonSet", "Job", "Pod"):
        pod = item if item["kind"] == "Pod" else item["spec"]["template"]
        yield pod["metadata"], pod["spec"]


def containers(spec: Manifest) -> list[Manifest]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def validate(file: Path, version: str) -> tuple[int, str]:
    """Return the number of objects in a file that a version of Kubernetes does not know as they are, and why."""
    texts = (json.dumps(item, sort_keys=True) for item in load_all(file.read_text()))
    found = [fault for text in texts if (fault := _fault(text, version))]
    return len(found), "\n".join(found)


@functools.cache  # many targets have the same objects
def _fault(text: str, version: str) -> str:
    try:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return str(error.message)
    return ""
