"""GPUs as the kernel shows them: PCI bus, device files, containers. No function raises."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpugauge.driver.bus import listed, on_bus, text
from gpugauge.driver.codes import gfx_target

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_NODE = re.compile(r"nvidia(\d+)")
_CONTAINER_CGROUP = re.compile(r"docker|kubepods|containerd|libpod|crio|lxc|garden")


def graphics_devices(sysfs: Path) -> dict[str, list[str]]:
    """Return the addresses of the GPUs on the PCI bus by vendor, without virtual functions for virtual machines."""
    found = {name: on_bus(sysfs, number) for number, name in _VENDORS.items()}
    return {name: [device.name for device in devices] for name, devices in found.items() if devices}


def kfd_targets(sysfs: Path) -> set[str]:
    """Return the architectures of the GPUs that amdgpu has for ROCm."""
    texts = map(text, sysfs.glob("class/kfd/kfd/topology/nodes/*/properties"))
    versions = {int(number) for each in texts for number in re.findall(r"\bgfx_target_version (\d+)", each)}
    return {gfx_target(version) for version in versions - {0}}


@dataclass(frozen=True, slots=True)
class Node:
    """A device file. `problem` is the reason for which it cannot be opened, or ""; `denied` is set if the device rules
    of the cgroup are the reason.
    """

    name: str
    problem: str = ""
    advice: str = ""
    denied: bool = False

    @property
    def of_gpu(self) -> bool:
        """Whether this is the file of one GPU."""
        return _NODE.fullmatch(self.name) is not None


def of_others(found: Sequence[Node]) -> list[Node]:
    """Return the files of GPUs that the cgroup denies while it allows others (ConstrainDevices=yes of Slurm)."""
    gpus = [node for node in found if node.of_gpu]
    return [node for node in gpus if node.denied] if any(not node.problem for node in gpus) else []


def device_files(dev: Path) -> list[Node]:
    """Try to open NVIDIA's device files as CUDA does; the control files come first."""
    numbered = sorted(int(m[1]) for path in listed(dev) if (m := _NODE.fullmatch(path.name)))
    control = [name for name in ("nvidiactl", "nvidia-uvm") if (dev / name).exists()]
    return [_open(dev / name) for name in (*control, *(f"nvidia{number}" for number in numbered))]


def has_gpu_files(dev: Path) -> bool:
    """Return whether there is a device file of a GPU, not only the driver's control files."""
    return any(_NODE.fullmatch(path.name) for path in listed(dev)) or (dev / "kfd").exists()


_NO_DRIVER = "the kernel driver of the file is not loaded: load it (modprobe nvidia nvidia-uvm)"
_ADVICE = {
    errno.EACCES: "allow this user to read and write {path}: add the user to {group}, or add a udev rule",
    errno.EPERM: "the container's device rules deny access although the file's mode allows it (systemctl daemon-reload "
    "can cause this): restart the container and pass the devices by name",
    errno.ENXIO: _NO_DRIVER,
    errno.ENODEV: _NO_DRIVER,
}
_OTHER = "reload the driver's modules or reboot, and check the kernel log for errors of the NVIDIA driver"


def _open(path: Path) -> Node:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, _OTHER).format(path=path, group=_group(path))
        return Node(path.name, error.strerror or str(error), advice, denied=error.errno == errno.EPERM)
    return Node(path.name)


def _group(path: Path) -> str:
    with contextlib.suppress(OSError, KeyError):
        return f"the group {grp.getgrgid(path.stat().st_gid).gr_name}"
    return "its group"


def in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container, as far as this can be detected from inside."""
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")) or in_apptainer(environ, root):
        return True
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    return bool(_CONTAINER_CGROUP.search(text(root / "proc/1/cgroup")))


def in_apptainer(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container of Apptainer or Singularity."""
    named = environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER")
    return bool(named) or (root / ".singularity.d").is_dir()
