"""The commands of docs/install-kubernetes.md, in a fresh copy of the checkout. No cluster is at hand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.e2e.documents import blocks, fresh_checkout, shell
from tests.e2e.manifests import VERSIONS, Manifest, containers, load_all, validate
from tests.needs import need

pytestmark = pytest.mark.e2e

DOCUMENT = "install-kubernetes.md"
# A replacement for kubectl: `apply -k FOLDER` renders the manifests into a file in place of sending them, `delete -k`
# only renders them, and what else would talk to a cluster does nothing.
KUBECTL = """#!/bin/sh
for last; do :; done
case "$*" in
    "apply "*"-k "*) {{ {real} kustomize "$last" && echo "---"; }} >> {sent};;
    "delete "*"-k "*) {real} kustomize "$last" > /dev/null;;
    "delete -n "*|"rollout status "*) ;;
    *) exec {real} "$@";;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the checkout with the document's own kustomization in it."""
    copy = fresh_checkout(tmp_path)
    (kustomization,) = blocks(DOCUMENT, "The image", "yaml")
    (copy / "kustomization.yaml").write_text(kustomization)
    return copy


def test_document(checkout: Path, tmp_path: Path) -> None:
    sent, programs = tmp_path / "sent.yaml", tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(KUBECTL.format(real=need("kubectl"), sent=sent))
    (programs / "kubectl").chmod(0o755)
    for heading in ("The image", "On each node", "Beside a training", "Removing it"):
        for block in blocks(DOCUMENT, heading):
            shell(block, checkout, {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    objects = load_all(sent.read_text())
    known = [item for item in objects if not item["apiVersion"].startswith("monitoring.coreos.com/")]
    sent.write_text(yaml.safe_dump_all(known))

    ours = {each["image"] for item in known for each in containers(_pod(item)) if "gpugauge" in each["image"]}

    assert {"DaemonSet", "Job", "PodMonitor", "PrometheusRule", "ClusterRole"} <= {item["kind"] for item in objects}
    assert validate(sent, VERSIONS[-1])[0] == 0
    # No later command of the document sets the image back.
    assert ours == {"registry.example/gpugauge:0.2.0"}


def _pod(item: Manifest) -> Manifest:
    pod: Manifest = item["spec"]["template"]["spec"] if item["kind"] in {"DaemonSet", "Job"} else {"containers": []}
    return pod


def test_an_own_kustomization_names_the_image_of_every_container(checkout: Path) -> None:
    command = [need("kubectl"), "kustomize", str(checkout)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sets = [item for item in load_all(made) if item["kind"] == "DaemonSet"]
    images = {each["image"] for item in sets for each in containers(item["spec"]["template"]["spec"])}

    assert images == {"registry.example/gpugauge:0.2.0"}
