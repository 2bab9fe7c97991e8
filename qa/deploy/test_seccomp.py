"""The seccomp profile of the Kubernetes manifests: the system calls of the systemd unit, and no other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.e2e.documents import ROOT
from tests.e2e.manifests import FOLDER, VERSIONS, load_all, validate
from tests.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.everything]

PROFILE = json.loads((FOLDER / "components/seccomp/gpugauge.json").read_text())
UNIT = ROOT / "deploy/systemd/gpugauge.service"
# Calls that systemd's sets have since the profile was written, and that neither the daemon nor the worker makes.
NEWER = {"uretprobe"}
# A container's worker gives up its capabilities by it. Under the unit they end with the start of a program.
ADDED = {"capset"}
DENIED = {"process_vm_readv", "process_vm_writev", "ptrace", "bpf", "mount"}


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


def allowed_by(unit: str) -> set[str]:
    """Return the system calls that the text of a unit allows."""
    known = sets()
    allowed: set[str] = set()
    for value in re.findall(r"^SystemCallFilter=(.+)$", unit, re.MULTILINE):
        names = set().union(*(known.get(word, {word}) for word in value.lstrip("~").split()))
        allowed = allowed - names if value.startswith("~") else allowed | names
    return allowed


def drift(unit: str, names: set[str]) -> tuple[set[str], set[str]]:
    """Return what only the profile allows (of the calls that systemd knows), and what only the unit allows."""
    allowed = allowed_by(unit) | ADDED
    return (names - allowed) & (set().union(*sets().values()) | DENIED), allowed - names - NEWER


def test_the_profile_is_the_filter_of_the_unit() -> None:
    (rule,) = PROFILE["syscalls"]
    names = set(rule["names"])

    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert rule["action"] == "SCMP_ACT_ALLOW"
    assert drift(UNIT.read_text(), names) == (set(), set()), "change the other one of unit and profile, too"
    assert not names & DENIED
    assert {"recvmsg", "openat", "ioctl", "mmap", "execve", "clone3", "prctl", "pidfd_open"} <= names


@pytest.mark.parametrize(
    ("line", "other", "only_profile", "only_unit"),
    [
        (" process_vm_readv process_vm_writev", " process_vm_writev", set(), {"process_vm_readv"}),
        ("@resources ", "", set(), {"setpriority", "sched_setaffinity"}),
        ("~@privileged", "~@privileged @network-io", {"recvmsg", "socket"}, set()),
        ("=@system-service\n", "=@basic-io\n", {"openat"}, set()),
    ],
)
def test_a_change_of_the_unit_alone_is_noticed(
    line: str, other: str, only_profile: set[str], only_unit: set[str]
) -> None:
    unit = UNIT.read_text()
    assert unit.count(line) == 1
    more, less = drift(unit.replace(line, other), set(PROFILE["syscalls"][0]["names"]))

    assert only_profile <= more
    assert only_unit <= less
    assert (bool(more), bool(less)) == (bool(only_profile), bool(only_unit))


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
    objects = [item for item in load_all(text) if item["apiVersion"] in {"apps/v1", "v1"}]
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
