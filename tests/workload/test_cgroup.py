from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from qa.worlds.trees import ID, OTHER_ID, STATIC_UID, UID, UID_, v1, v2

from gpugauge.workload.cgroup import Cgroup, directory, parse

POD = Cgroup(pod_uid=UID, container_id=ID)
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
USER = "/user.slice/user-1000.slice"

CASES = {
    "kubelet, cgroupfs, v1": (v1(f"/kubepods/burstable/pod{UID}/{ID}"), POD),
    "kubelet, cgroupfs, v2, guaranteed": (v2(f"/kubepods/pod{UID}/{ID}"), POD),
    "containerd, systemd": (v2(f"{BURSTABLE}/cri-containerd-{ID}.scope"), POD),
    "containerd, systemd, v1": (v1(f"{BURSTABLE}/cri-containerd-{ID}.scope"), POD),
    "containerd and kubelet disagree": (
        v1(f"/system.slice/containerd.service/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{ID}"),
        POD,
    ),
    "CRI-O": (v2(f"{BURSTABLE}/crio-{ID}.scope"), POD),
    "CRI-O, cgroup of the container's own": (v2(f"{BURSTABLE}/crio-{ID}.scope/container"), POD),
    "cri-dockerd": (v1(f"{BURSTABLE}/docker-{ID}.scope"), POD),
    "guaranteed, systemd": (v2(f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope"), POD),
    "static pod": (v2(f"/kubepods/burstable/pod{STATIC_UID}/{ID}"), Cgroup(pod_uid=STATIC_UID, container_id=ID)),
    "nested slices above": (v2(f"/a.slice/a-kubelet.slice{BURSTABLE}/crio-{ID}.scope"), POD),
    "Docker in a pod": (v2(f"{BURSTABLE}/cri-containerd-{ID}.scope/docker/{OTHER_ID}"), POD),
    "pod seen from another cgroup namespace": (v2(f"/../../kubepods-burstable-pod{UID_}.slice/crio-{ID}.scope"), POD),
    "own pod seen from its cgroup namespace": (v2(f"/../cri-containerd-{ID}.scope"), Cgroup(container_id=ID)),
    "kind on Docker": (v2(f"/docker/{OTHER_ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}"), POD),
    "Docker, cgroupfs": (v1(f"/docker/{ID}"), Cgroup(container_id=ID)),
    "Docker, systemd": (v2(f"/system.slice/docker-{ID}.scope"), Cgroup(container_id=ID)),
    "Docker, rootless": (
        v2(f"{USER}/user@1000.service/user.slice/docker-{ID}.scope"),
        Cgroup(container_id=ID, owner=1000),
    ),
    "Podman": (v2(f"/machine.slice/libpod-{ID}.scope"), Cgroup(container_id=ID)),
    "Podman, split": (v2(f"/machine.slice/libpod-{ID}.scope/container"), Cgroup(container_id=ID)),
    "Podman, cgroupfs": (v1(f"/libpod_parent/libpod-{ID}"), Cgroup(container_id=ID)),
    "Podman, in a pod": (v1(f"/libpod_parent/{OTHER_ID}/libpod-{ID}"), Cgroup(container_id=ID)),
    "Podman, rootless": (
        v2(f"{USER}/user@1000.service/user.slice/libpod-{ID}.scope/container"),
        Cgroup(container_id=ID, owner=1000),
    ),
    "Slurm 26.05": (v2("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0"), Cgroup(slurm_job="s5K1KKYAYG5D00")),
    "Slurm itself": (v2("/system.slice/n1_slurmstepd.scope/system"), Cgroup()),
    "Slurm, v1": (
        v1("/slurm/uid_1000/job_4711/step_0/task_0", systemd="/system.slice/slurmd.service"),
        Cgroup(slurm_job="4711", unit="slurmd.service"),
    ),
    "systemd service": (v2("/system.slice/train@a.service"), Cgroup(unit="train@a.service")),
    "systemd service with a cgroup of its own": (v2("/system.slice/train.service/work"), Cgroup(unit="train.service")),
    "systemd service in a slice, v1": (v1("/ml.slice/ml-a.slice/train.service"), Cgroup(unit="train.service")),
    "systemd-run --scope": (v2("/system.slice/run-r1f.scope"), Cgroup(unit="run-r1f.scope")),
    "user service": (v2(f"{USER}/user@1000.service/app.slice/train.service"), Cgroup(unit="train.service", owner=1000)),
    "session": (v2(f"{USER}/session-3.scope"), Cgroup(owner=1000)),
    "session, hybrid": (v1("/", systemd=f"{USER}/session-3.scope") + v2(f"{USER}/session-3.scope"), Cgroup(owner=1000)),
    "terminal of a desktop": (v2(f"{USER}/user@1000.service/app.slice/vte-spawn-1.scope"), Cgroup(owner=1000)),
    "session seen from another cgroup namespace": (v2(f"/../..{USER}/session-3.scope"), Cgroup(owner=1000)),
    "program of a desktop": (
        v2(f"{USER}/user@1000.service/app.slice/app-org.kde.konsole@1f.service"),
        Cgroup(owner=1000),
    ),
    "LXC, LXD, Incus": (v2("/lxc.payload.c1/system.slice/train.service"), Cgroup(system="c1")),
    "Proxmox": (v2("/lxc/101/ns/user.slice/user-0.slice/session-1.scope"), Cgroup(system="101")),
    "LXC, v1": (v1("/lxc/c1", systemd="/lxc/c1/system.slice/train.service"), Cgroup(system="c1")),
    "a job in LXC": (v2("/lxc.payload.c1/slurmstepd.scope/job_1/step_0"), Cgroup(system="c1")),
    "systemd-nspawn": (v2("/machine.slice/systemd-nspawn@c1.service/payload/init.scope"), Cgroup(system="c1")),
    "machinectl": (v2("/machine.slice/machine-c1.scope/payload/system.slice/a.service"), Cgroup(system="c1")),
    "virtual machine": (
        v2("/machine.slice/machine-qemu-1-vm.scope/libvirt/emulator"),
        Cgroup(unit="machine-qemu-1-vm.scope"),
    ),
    "init": (v2("/init.scope"), Cgroup()),
    "root": (v2("/"), Cgroup()),
    "nothing": ("", Cgroup()),
    "garbage": ("\x00\ufffd:::\n0:\n::\n/kubepods/pod", Cgroup()),
}


def test_paths() -> None:
    assert {what: parse(text) for what, (text, _) in CASES.items()} == {
        what: cgroup for what, (_, cgroup) in CASES.items()
    }


def test_users_cannot_forge_pods_or_jobs() -> None:
    for name in (f"kubepods/pod{UID}", f"kubepods-pod{UID_}.slice", "slurmstepd.scope/job_1"):
        found = parse(v2(f"{USER}/user@1000.service/app.slice/{name}/{ID}"))

        assert (found.pod_uid, found.slurm_job, found.owner) == ("", "", 1000), name


@given(
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["0::", "1:name=systemd:", "4:cpu,cpuacct:", ""]),
    st.sampled_from([f"/kubepods/pod{UID}", "/system.slice/slurmstepd.scope/job_1/step_0", "/lxc.payload.c1"]),
    st.sampled_from([f"{USER}/session-3.scope", "/lxc.payload.other"]),
)
def test_no_name_of_a_cgroup_forges_another_line(name: str, line: str, path: str, own: str) -> None:
    """The kernel writes each byte of a name but the end of a line as it is."""
    forged = parse(v2(f"{own}/{name}{line}{path}"))

    assert forged == parse(v2(own))


def test_directory(tmp_path: Path) -> None:
    folders = {
        v2("/system.slice/train.service"): "system.slice/train.service",
        v1("/docker/a"): "cpu,cpuacct/docker/a",
        "3:cpu,cpuacct:/\n0::/user.slice\n": "cpu,cpuacct",
        "1:name=systemd:/user.slice\n0::/user.slice\n": "unified/user.slice",
        v2("/"): "",
    }
    roots = {text: tmp_path / str(number) for number, text in enumerate(folders)}
    for text, folder in folders.items():
        (roots[text] / folder).mkdir(parents=True)

    assert {text: directory(text, roots[text], "cpu") for text in folders} == {
        text: roots[text] / folder for text, folder in folders.items()
    }


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    texts = [v2("/gone"), v2("/../other"), v1("/docker/gone"), "", v2("/" + "a" * 300), v2("/\0")]

    assert [text for text in texts if directory(text, tmp_path, "cpu") is not None] == []


def test_numbers_that_are_too_long_are_ignored() -> None:
    digits = "9" * 5000

    assert parse(v2(f"/user.slice/user-{digits}.slice")).owner is None
    assert parse(v2(f"/system.slice/slurmstepd.scope/job_{digits}/step_0")).slurm_job == ""
