"""What the kernel shows of GPUs: the PCI bus, device files, containers. Nothing here raises."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_NODE = re.compile(r"nvidia(\d+)")
_CONTAINED = re.compile(r"docker|kubepods|containerd|libpod|crio|lxc|garden")


def graphics_devices(sysfs: Path) -> dict[str, int]:
    """Return how many display controllers and accelerators the PCI bus shows, by vendor."""
    found: dict[str, int] = {}
    for device in _listed(sysfs / "bus/pci/devices"):
        # Class 03 is display controllers: 0300 with a screen, 0302 without. https://admin.pci-ids.ucw.cz/read/PD/03
        if _text(device / "class").startswith("0x03"):
            vendor = _VENDORS.get(_text(device / "vendor"))
            if vendor:
                found[vendor] = found.get(vendor, 0) + 1
    return found


@dataclass(frozen=True, slots=True)
class Node:
    """A device file and why it cannot be opened; `problem` is empty when it can."""

    name: str
    problem: str = ""
    advice: str = ""


def device_files(dev: Path) -> list[Node]:
    """Try to open NVIDIA's device files as CUDA does; the control files come first."""
    numbered = sorted(int(m[1]) for path in _listed(dev) if (m := _NODE.fullmatch(path.name)))
    control = [name for name in ("nvidiactl", "nvidia-uvm") if (dev / name).exists()]
    return [_tried(dev / name) for name in (*control, *(f"nvidia{number}" for number in numbered))]


def _tried(path: Path) -> Node:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Node(path.name, error.strerror or str(error), _ADVICE.get(error.errno or 0, _others)(path))
    return Node(path.name)


def _others(_: Path) -> str:
    return "reload the driver's modules or reboot, and look for errors of the NVIDIA driver in the kernel log"


def _no_driver(_: Path) -> str:
    return "no kernel driver is behind the file: load it (modprobe nvidia nvidia-uvm)"


def _no_right(path: Path) -> str:
    group = "its group"
    with contextlib.suppress(OSError, KeyError):
        group = f"the group {grp.getgrgid(path.stat().st_gid).gr_name}"
    return f"let this user read and write {path}: join {group}, or a udev rule"


def _refused(_: Path) -> str:
    return (
        "the container's device rules refuse the file although its mode allows it (systemctl daemon-reload does this): "
        "restart the container, and give it the devices by name"
    )


_ADVICE = {
    errno.EACCES: _no_right,
    errno.EPERM: _refused,
    errno.ENXIO: _no_driver,
    errno.ENODEV: _no_driver,
}


def in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether this process runs in a container, as far as it can tell from inside."""
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return True
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    return bool(_CONTAINED.search(_text(root / "proc/1/cgroup")))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
