"""Cases with given results of their sources."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.finding import Finding
from gpugauge.doctor.gpus import Driver
from gpugauge.doctor.table import Check
from gpugauge.doctor.target import ProbeResult
from gpugauge.driver.api import Device, DeviceReading, DriverFacts

CUDA = {"python": "3.12.1", "torch": "2.10.0+cu128", "file": "/venv/torch/__init__.py", "cuda": "12.8", "stage": "done"}
CPU = {**CUDA, "torch": "2.13.0+cpu", "cuda": None}
ROCM = {**CPU, "torch": "2.10.0+rocm6.4", "hip": "6.4.43482"}
H100 = {"name": "NVIDIA H100", "capability": [9, 0], "uuid": "0"}
NO_DRIVER = Driver("library_not_found")


def add_pci(root: Path, address: str, vendor: str, kind: str, physical: str = "") -> None:
    """Add a device to the PCI bus; a virtual function is one of the device `physical`."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(kind + "\n")
    if physical:
        (folder / "physfn").symlink_to(f"../{physical}")


def device_files(root: Path, *names: str) -> None:
    """Make the files in /dev."""
    (root / "dev").mkdir()
    for name in names:
        (root / "dev" / name).touch()


def device(index: int = 0, **reading: Any) -> Device:
    known = {"name": "NVIDIA H100", "compute_capability": (9, 0), "processes": (), **reading}
    return Device(f"GPU-{index}", True, "ok", DeviceReading(index=index, **known), {})


def lost(index: int, reason: str = "gpu_is_lost") -> Device:
    return Device("", False, reason, DeviceReading(index=index), {})


def driver(*devices: Device, cuda: int | None = 12080) -> Driver:
    return Driver("ok", DriverFacts(len(devices), "570.124.06", cuda_driver_version=cuda), devices)


def case(
    root: Path,
    answers: Driver | None = None,
    torch: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    pci: Mapping[str, int] | None = None,
    ending: str = "",
    platform: str = "linux",
    in_container: bool = False,
    **options: Any,
) -> Case:
    """Return a case; by default of a machine with one H100 that works."""
    result = Case(Options(**{"url": "http://127.0.0.1:1", **options}), environ or {}, root, platform)
    result.driver = driver(device()) if answers is None else answers
    counts = {"NVIDIA": len(result.driver.devices)} if pci is None else pci
    result.pci = {vendor: [f"0000:{number:02x}:00.0" for number in range(n)] for vendor, n in counts.items()}
    result.in_container = in_container
    result.python = ("/venv/bin/python", "")
    result.torch = ProbeResult(torch or {}, ending)
    return result


def findings(check: Check, of: Case) -> list[Finding]:
    """Return what a check finds, also if it is one finding."""
    found = check(of)
    return [found] if isinstance(found, Finding) else list(found)


def with_torch(folder: Path, **how: Any) -> dict[str, str]:
    """Return an environment in which this Python imports the double of torch."""
    shutil.copy(Path(__file__).with_name("fake_torch.py"), folder / "torch.py")
    return {"PYTHONPATH": str(folder), "FAKE_TORCH": json.dumps(how)}


PYTHON = sys.executable
