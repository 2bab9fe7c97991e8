"""NVIDIA's GPUs on the PCI bus and in the kernel driver: the library does not enumerate new ones, nor each lost one."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from gpugauge.driver.bus import BusDevice, driver_of, on_bus, pci_address, text

_VENDOR = "0x10de"


def bound_devices(procfs: Path) -> frozenset[str] | None:
    """Return the PCI addresses of the GPUs that the NVIDIA kernel driver is bound to; None if they are unknown."""
    try:
        return frozenset(entry.name for entry in (procfs / "driver/nvidia/gpus").iterdir())
    except OSError:
        return None


def bus_devices(sysfs: Path, procfs: Path, dev: Path = Path("/dev")) -> tuple[BusDevice, ...] | None:
    """Return NVIDIA's GPUs on the bus, None without one; visible are those whose device file this process can open."""
    devices = on_bus(sysfs, _VENDOR)
    return None if devices is None else tuple(_device(device, procfs, dev) for device in devices)


def may_have_gpu(bus: Collection[BusDevice] | None, dev: Path = Path("/dev")) -> bool:
    """Return whether a machine may have a GPU: on its `bus`, or in device files, as in WSL."""
    return bus is None or bool(bus) or (dev / "dxg").exists() or any(dev.glob("nvidia[0-9]*"))


def _device(device: Path, procfs: Path, dev: Path) -> BusDevice:
    address, driver = pci_address(device.name), driver_of(device) or "no driver"
    facts = {}
    for line in text(procfs / "driver/nvidia/gpus" / device.name / "information").splitlines():
        name, _, value = line.partition(":")
        facts[name.strip().lower()] = value.strip()
    minor = facts.get("device minor", "")
    file = dev / f"nvidia{minor}"
    visible = minor.isdigit() and facts.get("gpu excluded", "No") != "Yes" and os.access(file, os.R_OK | os.W_OK)
    return BusDevice(address, visible=visible) if driver == "nvidia" else BusDevice(address, f"bound to {driver}")
