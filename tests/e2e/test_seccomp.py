"""The seccomp profile of the Kubernetes manifests: the system calls of the systemd unit, and no other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.e2e.documents import ROOT
from tests.e2e.manifests import FOLDER, VERSIONS, validate
from tests.needs import need

pytestmark = pytest.mark.e2e

PROFILE = json.loads((FOLDER / "components/seccomp/gpugauge.json").read_text())
UNIT = ROOT / "deploy/systemd/gpugauge.service"


def sets() -> dict[str, set[str]]:
    """Return the system calls of each set that this machine's systemd knows."""
    output = subprocess.run(
        [need("systemd-analyze"), "syscall-filter"], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("@"):
            found[name := line.strip()] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            found[name].append(line.strip())

    def members(name: str) -> set[str]:
        return set().union(*(members(each) if each.startswith("@") else {each} for each in found[name]))

    return {name: members(name) for name in found}


def of_unit() -> tuple[set[str], set[str]]:
    """Return the system calls that the unit allows, and those that it denies by name or set."""
    known = sets()
    allowed: set[str] = set()
    denied: set[str] = set()
    for value in re.findall(r"^SystemCallFilter=(.+)$", UNIT.read_text(), re.MULTILINE):
        names = set().union(*(known.get(word, {word}) for word in value.lstrip("~").split()))
        if value.startswith("~"):
            allowed, denied = allowed - names, denied | names
        else:
            allowed, denied = allowed | names, denied - names
    return allowed, denied


def test_the_profile_is_the_filter_of_the_unit() -> None:
    (rule,) = PROFILE["syscalls"]
    names = set(rule["names"])
    allowed, denied = of_unit()

    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert rule["action"] == "SCMP_ACT_ALLOW"
    assert not names & denied
    assert {"process_vm_readv", "ptrace", "bpf", "mount"}.isdisjoint(names)
    # A newer systemd knows more system calls, an older one fewer.
    assert len(names ^ allowed) <= len(allowed) / 10
    assert {"recvmsg", "openat", "ioctl", "mmap", "execve", "clone3", "prctl", "pidfd_open"} <= names


@pytest.mark.parametrize("version", VERSIONS)
def test_the_component_fits_the_daemonset(version: str, tmp_path: Path) -> None:
    overlay = FOLDER.parent / "kubernetes" / "overlays" / "standard"
    folder = tmp_path / "overlay"
    folder.mkdir()
    relative = Path(*[".."] * len(folder.parts[1:])) / overlay.relative_to("/")
    component = relative.parent.parent / "components" / "seccomp"
    document = {"resources": [str(relative)], "components": [str(component)], "namespace": "gpugauge"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    command = [need("kubectl"), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = [item for item in yaml.safe_load_all(text) if item["apiVersion"] in {"apps/v1", "v1"}]
    (daemon,) = [item for item in objects if item["kind"] == "DaemonSet"]
    spec = daemon["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    places = {volume["name"]: volume for volume in spec["volumes"]}
    (writer,) = spec["initContainers"]
    target = {mount["mountPath"]: places[mount["name"]] for mount in writer["volumeMounts"]}["/seccomp"]
    (config,) = [item for item in objects if item["kind"] == "ConfigMap" and "gpugauge.json" in item["data"]]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(objects))

    assert container["securityContext"]["seccompProfile"] == {
        "type": "Localhost",
        "localhostProfile": "gpugauge.json",
    }
    # The kubelet reads profiles from this folder.
    assert target["hostPath"]["path"] == "/var/lib/kubelet/seccomp"
    assert 'os.rename("/seccomp/.gpugauge.json", "/seccomp/gpugauge.json")' in writer["args"][0]
    assert json.loads(config["data"]["gpugauge.json"]) == PROFILE
    assert validate(file, version)[0] == 0
