"""GPUs on the PCI bus, and AMD's in the kernel driver. No function raises."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from gpugauge.driver.missing import BusDevice, pci_address
from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.vendors.nvidia import NVIDIA

_AMD = "0x1002"
# Class 03 is display controllers, 1200 processing accelerators: AMD's Instinct from MI300 on; other vendors have NPUs
# there. https://admin.pci-ids.ucw.cz/read/PD
_CLASSES = {_AMD: ("0x03", "0x1200")}
_DEVICE = re.compile(r"card\d+")


def worker_module(sysfs: Path) -> str:
    """Return the module of the worker: NVIDIA's, unless the kernel has a GPU of AMD. This reads a file per GPU."""
    found = (path for path in listed(sysfs / "class/drm") if _DEVICE.fullmatch(path.name))
    return AMD.worker if any(text(path / "device/vendor") == _AMD for path in found) else NVIDIA.worker


def on_bus(sysfs: Path, vendor: str) -> list[Path] | None:
    """Return the folders of the GPUs of a vendor (0x10de), without virtual functions; None without a bus."""
    folder = sysfs / "bus/pci/devices"
    try:
        devices = sorted(folder.iterdir())
    except OSError:
        return None
    return [device for device in devices if text(device / "vendor") == vendor and _is_gpu(device, vendor)]


def is_suspended(sysfs: Path, address: str) -> bool:
    """Return whether the kernel has suspended the device at a PCI address."""
    return text(sysfs / "bus/pci/devices" / address / "power/runtime_status") == "suspended"


def driver_of(device: Path) -> str:
    """Return the name of the driver that a device is bound to, "" without one."""
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def amd_devices(sysfs: Path) -> tuple[BusDevice, ...] | None:
    """Return AMD's GPUs on the PCI bus that amdgpu has, all of them visible here; None if it cannot be read."""
    found = on_bus(sysfs, _AMD)
    return None if found is None else tuple(_device(device) for device in found if driver_of(device) != "radeon")


def bound_to_amd(sysfs: Path) -> frozenset[str] | None:
    """Return the PCI addresses of the GPUs that amdgpu is bound to, None if it is not loaded."""
    folder = sysfs / "bus/pci/drivers/amdgpu"
    return frozenset(path.name for path in listed(folder) if ":" in path.name) if folder.is_dir() else None


def joined(*found: Collection[BusDevice] | None) -> tuple[BusDevice, ...] | None:
    """Return all GPUs of a bus, None if it cannot be read."""
    return None if None in found else tuple(device for each in found for device in each or ())


def text(path: Path) -> str:
    """Return the text of a file, "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _device(device: Path) -> BusDevice:
    driver = driver_of(device)
    elsewhere = "" if driver == "amdgpu" else f"bound to {driver}" if driver else "bound to no driver"
    return BusDevice(pci_address(device.name), elsewhere, not elsewhere)


def _is_gpu(device: Path, vendor: str) -> bool:
    return text(device / "class").startswith(_CLASSES.get(vendor, ("0x03",))) and not (device / "physfn").is_symlink()


def listed(folder: Path) -> list[Path]:
    """Return what is in a folder, nothing if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
