"""NVIDIA's GPUs on the PCI bus, in the kernel driver and in the kernel log: the library does not enumerate new ones,
nor each lost one, and its events lack the Xid errors 79, 119 and 120.

https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from gpugauge.driver.api import KernelXid
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


# "6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
# With MIG "(PCI:0000:3b:00 GPU-I:05)", with old drivers "(0000:3b:00)".
# The end of a fault is "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", the start of the
# driver, at boot or after `modprobe`, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06". An NVLink error has
# its severity: "145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 …)".
_RECORD = re.compile(
    rb"(?P<level>\d{1,9}),\d{1,20},(?P<time>\d{1,20}),[^;\n]*;NVRM: (?:loading NVIDIA UNIX |"
    rb"Xid \((?:PCI:)?(?P<address>[0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2})[^)\n]*\): (?P<xid>\d{1,5})\b"
    rb"(?:(?P<none>, GPU recovery action changed from \S+ \([^)\n]*\) to 0x0\b)|(?P<nonfatal>, \w+ +Nonfatal\b))?)"
)


def parse(records: bytes) -> list[KernelXid]:
    """Return the Xid errors in kernel log records, and the starts of the driver; records of programs are ignored."""
    return [
        _event(match)
        for line in records.splitlines()
        if (match := _RECORD.match(line)) and int(match["level"]) < 8  # facility 0: records of the kernel itself
    ]


def _event(match: re.Match[bytes]) -> KernelXid:
    seconds = int(match["time"]) / 1e6
    if match["xid"] is None:
        return KernelXid("", None, seconds)
    address = pci_address(match["address"].decode())
    return KernelXid(address, int(match["xid"]), seconds, bool(match["none"]), bool(match["nonfatal"]))
