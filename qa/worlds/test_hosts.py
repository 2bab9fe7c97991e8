"""The doctor on drawn hosts whose GPUs a user sees in part: what is well is not accused, what is not is named."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import EVERYTHING, seeds

from gpugauge.doctor import machine, nodes
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.gpus import Driver
from gpugauge.doctor.target import ProbeResult
from gpugauge.driver.api import Device, DeviceReading, DriverFacts

VENDORS = {"NVIDIA": "0x10de", "AMD": "0x1002", "Intel": "0x8086"}


def add(root: Path, address: str, vendor: str, kind: str, physical: str = "") -> None:
    """Add a device to the PCI bus; a virtual function is one of the device `physical`."""
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(VENDORS[vendor] + "\n")
    (device / "class").write_text(kind + "\n")
    if physical:
        (device / "physfn").symlink_to(f"../{physical}")


class Host:
    """A host: GPUs on the bus, of which a job has some, others' by the device cgroup, virtual functions and NPUs.
    `lost` is the number of GPUs that fell off the driver.
    """

    def __init__(self, seed: int, root: Path) -> None:
        chance = random.Random(seed)
        self.root, self.count = root, chance.randint(1, 8)
        self.constrained = chance.random() < 0.5
        self.own = sorted(chance.sample(range(self.count), chance.randint(1, self.count)))
        self.lost = not self.constrained and self.count > 1 and chance.random() < 0.4
        if not self.constrained:
            self.own = list(range(self.count - self.lost))
        self.broken = chance.choice([None, None, errno.EACCES, errno.ENXIO, errno.EIO])
        for number in range(self.count):
            add(root, f"0000:{number + 16:02x}:00.0", "NVIDIA", chance.choice(["0x030000", "0x030200"]))
        for number in range(chance.choice([0, 0, 4, 16])):
            add(root, f"0000:10:01.{number:x}", "NVIDIA", "0x030200", physical="0000:10:00.0")
        for number in range(chance.choice([0, 0, 2])):
            add(root, f"0000:80:{number:02x}.0", "Intel", "0x120000")  # NPUs
        (root / "dev").mkdir()
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(self.count))):
            (root / "dev" / name).touch()
        (root / "proc/1").mkdir(parents=True)
        (root / "proc/1/cgroup").write_text("0::/init.scope\n")

    def open(self, path: Any, flags: int, *more: Any) -> int:
        """Open a device file as the kernel would."""
        number = Path(path).name.removeprefix("nvidia")
        if number.isdigit() and self.constrained and int(number) not in self.own:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        if self.broken and number == str(self.own[0]):
            raise OSError(self.broken, os.strerror(self.broken))
        return opened(path, flags, *more)

    def case(self) -> Case:
        readings = [
            DeviceReading(index=i, name="H100", pci_bus_id=f"00000000:{number + 16:02X}:00.0")
            for i, number in enumerate(self.own)
        ]
        devices = tuple(Device(f"GPU-{r.index}", True, "ok", r, {}) for r in readings)
        case = Case(Options(), {"SLURM_JOB_ID": "7"} if self.constrained else {}, self.root, "linux")
        vars(case)["driver"] = Driver("ok", DriverFacts(driver_version="570", device_count=len(devices)), devices)
        return case


opened = os.open


@seeds(range(80 if EVERYTHING else 30))
def test_only_what_is_wrong_is_accused(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(seed, tmp_path)
    monkeypatch.setattr(os, "open", host.open)
    case = host.case()
    hardware, files = machine.graphics_devices(case), machine.device_files(case)
    alone = host.constrained and host.broken and len(host.own) == 1  # no file opens, so that the rules may be wrong

    assert case.pci.get("NVIDIA") == host.count
    if not alone:
        assert hardware.level == ("warning" if host.lost else "pass"), hardware
    assert files.level == ("failure" if host.broken else "pass"), files
    if host.broken and not alone:
        assert [n for n in range(host.count) if f"/dev/nvidia{n}:" in files.found] == [host.own[0]]


@pytest.mark.parametrize("kind", ["0x030000", "0x038000", "0x120000"])
def test_each_kind_of_amd_gpu_is_seen(kind: str, tmp_path: Path) -> None:
    add(tmp_path, "0000:10:00.0", "AMD", kind)

    assert nodes.graphics_devices(tmp_path / "sys") == {"AMD": ["0000:10:00.0"]}


@pytest.mark.parametrize("available", [True, False])
def test_the_gpu_of_a_jetson_is_seen_by_torch_alone(available: bool, tmp_path: Path) -> None:
    case = Case(Options(), {}, tmp_path, "linux")
    vars(case)["driver"] = Driver("library_not_found")
    vars(case)["torch"] = ProbeResult({"torch": "2.1", "available": available})

    assert (case.by_torch_alone, case.is_bare) == (available, not available)
    assert machine.graphics_devices(case).level == ("pass" if available else "warning")
    assert machine.driver(case).level == "skipped"


@pytest.mark.parametrize(
    ("environ", "mark"), [({"APPTAINER_CONTAINER": "/x.sif"}, ""), ({"SINGULARITY_CONTAINER": "/x"}, ""), ({}, "1")]
)
def test_apptainer_is_a_container_that_needs_nv(environ: dict[str, str], mark: str, tmp_path: Path) -> None:
    add(tmp_path, "0000:10:00.0", "NVIDIA", "0x030200")
    if mark:
        (tmp_path / ".singularity.d").mkdir()
    case = Case(Options(), environ, tmp_path, "linux")
    vars(case)["driver"] = Driver("library_not_found")

    assert case.in_container
    assert "--nv" in machine.driver(case).advice
    assert "--nv" in machine.container(case).advice
