"""The files of amdgpu: read, counted and timed as calls, and the GPUs that they describe."""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

from gpugauge.driver import codes
from gpugauge.driver.codes import DriverError, gfx_target
from gpugauge.driver.worker import Calls

_MAX_BYTES = 1 << 18  # of a file; gpu_metrics may be 128 KiB
_VENDOR = "0x1002"
_DEVICE = re.compile(r"card\d+")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# A kernel that resets a GPU, or that must not wake it, answers EPERM.
_CODES = {errno.EACCES: codes.NO_PERMISSION, errno.EPERM: codes.NOT_READY, errno.EBUSY: codes.IN_USE}
_CODES |= {errno.ENODEV: codes.GPU_IS_LOST, errno.ETIME: codes.TIMEOUT, errno.ETIMEDOUT: codes.TIMEOUT}
_CODES |= dict.fromkeys(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EOPNOTSUPP, errno.EINVAL, errno.ENXIO, errno.ENODATA),
    codes.NOT_SUPPORTED,
)


class Files:
    """Reads files below a folder. Raises DriverError, with `not_supported` for a file that does not exist."""

    def __init__(self, calls: Calls, folder: str) -> None:
        self._calls, self.folder = calls, folder

    def bytes(self, name: str) -> bytes:
        """Return the content of a file, to its end: its size in the folder is not that of its content."""
        function, began = name.partition("/")[0].rstrip("0123456789"), self._calls.clock()
        try:
            descriptor = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = b""
                while len(content) < _MAX_BYTES and (part := os.read(descriptor, _MAX_BYTES)):
                    content += part
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DriverError(_CODES.get(error.errno or 0, codes.UNKNOWN), function) from None
        finally:
            self._calls.count(function, began)
        return content

    def text(self, name: str) -> str:
        """Return the text of a file, without the space around it."""
        return self.bytes(name).decode(errors="replace").strip()

    def number(self, name: str) -> int | None:
        """Return the number in a file, None if it has none: power1_cap may be empty."""
        text = self.text(name)
        return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None

    def optional(self, name: str) -> str:
        """Return the text of a file, "" if it cannot be read."""
        try:
            return self.text(name)
        except DriverError:
            return ""

    def names(self, name: str = "") -> list[str]:
        """Return the names in a folder, none if it cannot be read."""
        try:
            return sorted(os.listdir(f"{self.folder}/{name}"))  # noqa: PTH208  (pathlib would be 0.7 MB of the worker)
        except OSError:
            return []


class Node(NamedTuple):
    """A GPU of KFD, or a partition of one. `number` is its place in the topology, in which HIP counts."""

    number: int
    gpu_id: int
    facts: dict[str, int]
    memory: int  # bytes

    @property
    def slot(self) -> str:
        """The PCI address without the function, in which older kernels have the partition."""
        location = self.facts.get("location_id", 0)
        return f"{self.facts.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"

    @property
    def uuid(self) -> str:
        """The name of ROCR_VISIBLE_DEVICES, "" without one."""
        return uuid_of(self.facts.get("unique_id", 0))

    @property
    def target(self) -> str:
        """The architecture as in builds for ROCm, such as gfx942."""
        return gfx_target(self.facts.get("gfx_target_version", 0))

    @property
    def compute_units(self) -> int | None:
        """The number of compute units, which torch calls multiprocessors."""
        return self.facts.get("simd_count", 0) // (self.facts.get("simd_per_cu", 0) or 1) or None


def uuid_of(number: int) -> str:
    """Return the uuid of a GPU as ROCm writes it, "" for one without."""
    return f"GPU-{number:016x}" if 0 < number < 1 << 64 else ""


def nodes(kfd: Files) -> list[Node]:
    """Return the GPUs in the topology of KFD."""
    found = []
    for name in sorted((n for n in kfd.names("topology/nodes") if n.isdigit()), key=int):
        folder = f"topology/nodes/{name}"
        gpu_id = kfd.optional(f"{folder}/gpu_id")
        if not gpu_id.isdigit() or not int(gpu_id):
            continue  # a CPU
        banks = [f"{folder}/mem_banks/{bank}/properties" for bank in kfd.names(f"{folder}/mem_banks")]
        memory = sum(_properties(kfd.optional(bank)).get("size_in_bytes", 0) for bank in banks)
        found.append(Node(int(name), int(gpu_id), _properties(kfd.optional(f"{folder}/properties")), memory))
    return found


def _properties(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def folders(drm: Files) -> dict[str, str]:
    """Return the folders of the GPUs by PCI address. Partitions of a GPU are platform devices, and have none."""
    found: dict[str, str] = {}
    for name in drm.names():
        device = os.path.realpath(f"{drm.folder}/{name}/device") if _DEVICE.fullmatch(name) else ""
        address = device.rpartition("/")[2]
        if _ADDRESS.fullmatch(address) and drm.optional(f"{name}/device/vendor") == _VENDOR:
            found[address] = device
    return found
