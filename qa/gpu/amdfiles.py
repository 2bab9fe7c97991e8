"""What the files of amdgpu say on a real machine: a step of `python -m qa.gpu.check` where no GPU is of NVIDIA.

Each file that gpugauge reads is copied, second by second, and the values that it makes of them are printed. A second
can be read again: `Amd().open(f"{folder}/{second}/sys")`. The copies have serial numbers: look at them before you
publish them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.amd.files import Files, folders
from gpugauge.driver.api import DriverError, Group
from gpugauge.driver.worker import Calls

GROUPS: tuple[Group, ...] = ("static", "fast", "normal", "slow", "processes", "mig")


def record(out: Path, seconds: float, root: str = "/") -> dict[str, Any]:
    """Copy and read the files below a root; return fields with values or errors by PCI address. Raises DriverError."""
    sysfs, procfs = (f"{root.rstrip('/')}/{name}" for name in ("sys", "proc"))
    amd, second, found = Amd(), 0, dict[str, Any]()
    amd.open(sysfs, procfs)
    read = Files.bytes

    def copied(files: Files, name: str) -> bytes:
        content = read(files, name)
        path = Path(f"{files.folder}/{name}").resolve()
        if path.is_relative_to(root):
            copy = out / str(second) / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        return content

    with mock.patch.object(Files, "bytes", copied):
        end = time.monotonic() + seconds
        while True:
            _link(Path(sysfs), out / str(second) / "sys")
            Amd().open(sysfs, procfs)  # for what identifies the GPUs
            for index in range(amd.facts().device_count):
                try:
                    values, errors = amd.read(index, GROUPS)
                except DriverError as error:
                    found[str(index)] = {"failed": str(error)}
                    continue
                fields = {name: value for group in values.values() for name, value in group.items()}
                found[str(fields.get("pci_bus_id", index))] = errors | fields
            if time.monotonic() >= end:
                break
            second += 1
            time.sleep(1.0)
    (out / "values.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
    return found


def _link(sysfs: Path, copy: Path) -> None:
    """Make the links by which the GPUs are found, and keep the names of all files of each."""
    drm = Files(Calls(), f"{sysfs}/class/drm")
    cards = {Path(f"{drm.folder}/{name}/device").resolve(): name for name in drm.names()}
    for folder in map(Path, folders(drm).values()):
        target = copy / folder.relative_to(sysfs.resolve())
        target.mkdir(parents=True, exist_ok=True)
        (target / "names").write_text("\n".join(sorted(path.name for path in folder.iterdir())) + "\n")
        link = copy / f"class/drm/{cards[folder]}/device"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(Path("../../..") / folder.relative_to(sysfs.resolve()))
