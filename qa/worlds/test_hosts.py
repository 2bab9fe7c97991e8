"""The doctor on drawn hosts whose GPUs a user sees in part: what is well is not accused, what is not is named."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.cases import CPU, CUDA, ROCM, add_pci, case, device_files, findings
from tests.drawn import seeds

from gpugauge.doctor import machine, table
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.gpus import Driver
from gpugauge.doctor.report import lines
from gpugauge.doctor.table import Entry
from gpugauge.driver.api import Device, DeviceReading, DriverFacts


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
            add_pci(root, f"0000:{number + 16:02x}:00.0", "0x10de", chance.choice(["0x030000", "0x030200"]))
        for number in range(chance.choice([0, 0, 4, 16])):
            add_pci(root, f"0000:10:01.{number:x}", "0x10de", "0x030200", physical="0000:10:00.0")
        for number in range(chance.choice([0, 0, 2])):
            add_pci(root, f"0000:80:{number:02x}.0", "0x8086", "0x120000")  # NPUs
        device_files(root, "nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(self.count)))
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
        made = Case(Options(), {"SLURM_JOB_ID": "7"} if self.constrained else {}, self.root, "linux")
        vars(made)["driver"] = Driver("ok", DriverFacts(driver_version="570", device_count=len(devices)), devices)
        return made


opened = os.open


@seeds(range(80))
def test_only_what_is_wrong_is_accused(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(seed, tmp_path)
    monkeypatch.setattr(os, "open", host.open)
    here = host.case()
    hardware, files = machine.graphics_devices(here), machine.cuda_files(here)
    alone = host.constrained and host.broken and len(host.own) == 1  # no file opens, so that the rules may be wrong

    assert len(here.pci.get("NVIDIA", ())) == host.count
    if not alone:
        assert hardware.level == ("warning" if host.lost else "pass"), hardware
    assert files.level == ("failure" if host.broken else "pass"), files
    if host.broken and not alone:
        assert [n for n in range(host.count) if f"/dev/nvidia{n}:" in files.found] == [host.own[0]]


@seeds(range(40))
def test_a_drawn_machine_without_a_gpu_is_told_so_once(seed: int, tmp_path: Path) -> None:
    """A laptop has no trace of a GPU; where there is one, somebody expects a GPU, and the failures are named."""
    rng = random.Random(seed)
    pci: dict[str, int] = dict(rng.sample(sorted({"Intel": 1, "AMD": 2, "NVIDIA": 1}.items()), rng.randrange(3)))
    files = [name for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "kfd") if rng.random() < 0.3]
    reason = rng.choice(["library_not_found", "library_not_found", "driver_not_loaded", "no_permission"])
    torch: dict[str, Any] = rng.choice([CPU, CUDA, ROCM])
    environ = rng.choice([{}, {"CUDA_VISIBLE_DEVICES": ""}])
    device_files(tmp_path, *files)
    drawn = case(
        tmp_path, Driver(reason), {**torch, "available": False}, pci=pci, environ=environ, in_container=seed % 2 == 1
    )
    checks = [check for group in (table.MACHINE, table.HERE, table.PYTHON, table.PYTORCH) for check in group.checks]
    found = [finding for check in checks for finding in findings(check, drawn)]
    troubles = [finding for finding in found if finding.severity]

    traces = {"AMD", "NVIDIA"} & pci.keys() or {"nvidia0", "kfd"} & set(files) or reason != "library_not_found"
    if traces:
        assert "AMD" in pci or "failure" in {finding.level for finding in troubles}
    else:
        (only,) = troubles
        assert (only.title, only.level) == ("GPU hardware", "warning")
        assert only.found.startswith("none on the PCI bus or in /dev that CUDA or ROCm could use")
        assert ("(1 x Intel)" in only.found) == bool(pci)
        assert only.advice.startswith("nothing is wrong if none was expected; otherwise ")
        assert ("docker run --gpus" in only.advice) == drawn.in_container
        entries = [Entry("Machine", check.__name__, f) for check in checks for f in findings(check, drawn)]
        assert list(lines(drawn, entries, colour=False))[-1] == (
            "There is no GPU here. The checks found no other problem."
        )
