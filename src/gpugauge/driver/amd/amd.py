"""The files of amdgpu as the backend of a worker: sysfs and KFD's topology, below folders that can be chosen."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from gpugauge.driver.amd.device import Device, identity
from gpugauge.driver.amd.files import Files, Node, folders, nodes
from gpugauge.driver.codes import GPU_NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED, DriverError, DriverFacts, Group
from gpugauge.driver.worker import Calls

_PRODUCTS = "/usr/share/libdrm"


class Amd:
    """The backend of AMD's GPUs, in the order in which HIP counts them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.calls = Calls(clock)
        self._clock = clock
        self._devices: list[Device] = []
        self._sysfs = self._kfd = Files(self.calls, "/sys")
        self._generation: str | None = None
        self._reported = False

    def open(self, sysfs: str = "/sys", procfs: str = "/proc") -> None:
        """Find the GPUs. Raises DriverError without any."""
        self._sysfs, self._kfd = Files(self.calls, sysfs), Files(self.calls, f"{sysfs}/class/kfd/kfd")
        found = folders(Files(self.calls, f"{sysfs}/class/drm"))
        if not found:
            raise DriverError(GPU_NOT_FOUND, "class/drm")
        topology = self._topology()
        boot = Files(self.calls, procfs).optional("sys/kernel/random/boot_id")
        digest = hashlib.sha256(boot.encode()).hexdigest()[:8] if boot else ""
        ids = Files(self.calls, _PRODUCTS).optional("amdgpu.ids")
        self._devices = []
        for address, folder in found.items():
            files, own = Files(self.calls, folder), _of(address, topology)
            self._devices.append(Device(files, own, identity(address, files, own, ids, digest)))
        last = max((node.number for node in topology), default=0) + 1
        self._devices.sort(key=lambda d: (d.nodes[0].number if d.nodes else last, d.identity["pci_bus_id"]))

    def close(self) -> None:
        """Forget the GPUs; nothing is held open."""
        self._devices = []

    def facts(self) -> DriverFacts:
        """Return the number of GPUs, and the version of a driver that is not the kernel's own."""
        return DriverFacts(len(self._devices), self._sysfs.optional("module/amdgpu/version") or None)

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return values by group and field, and the codes of failed fields. Raises DriverError if the GPU is gone."""
        device = self._device(index)
        wanted = list(groups)
        if "mig" in wanted and self._update(device):
            wanted = list(dict.fromkeys((*wanted, "static")))
        values, errors = device.read(wanted, self._clock())
        if "static" in values:
            values["static"]["index"] = index
        if "mig" in values:
            values["mig"]["mig_instances"] = _partitions(device)
        if "processes" in values:
            self._read_processes(device, values["processes"], errors)
        return values, errors

    def samples(self, _index: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return nothing: amdgpu keeps no samples."""
        return {}, {}

    def lacks(self, index: int) -> Collection[str]:
        """Return the fields that a GPU does not support, as far as that is known."""
        return self._device(index).lacks

    def take_events(self) -> list[dict[str, Any]]:
        """Return nothing: amdgpu reports errors in the kernel log only."""
        return []

    def _device(self, index: int) -> Device:
        if not 0 <= index < len(self._devices):
            raise DriverError(INVALID_ARGUMENT, f"GPU {index}")
        return self._devices[index]

    def _topology(self) -> list[Node]:
        self._generation = self._kfd.optional("topology/generation_id")
        return nodes(self._kfd)

    def _update(self, device: Device) -> bool:
        if self._kfd.optional("topology/generation_id") != self._generation:
            topology = self._topology()
            for each in self._devices:
                each.renewed = _of(each.identity["pci_bus_id"], topology)
        changed = device.renewed is not None and device.renewed != device.nodes
        if device.renewed is not None:
            device.nodes, device.renewed = device.renewed, None
        return changed

    def _read_processes(self, device: Device, found: dict[str, Any], errors: dict[str, str]) -> None:
        """List the processes with memory on a GPU: KFD lists each process for every GPU."""
        if not self._kfd.names("topology/nodes") or not device.nodes:
            errors["processes"] = NOT_SUPPORTED
            if not self._reported:
                self._reported = True
                sys.stderr.write(f"gpugauge: {self._kfd.folder} has no GPUs: their processes are not known\n")
            return
        found["processes"] = []
        divided = len(device.nodes) > 1
        for pid in filter(str.isdigit, self._kfd.names("proc")):
            for place, node in enumerate(device.nodes):
                try:
                    size = self._kfd.number(f"proc/{pid}/vram_{node.gpu_id}")
                except DriverError as error:
                    if error.code != NOT_SUPPORTED:  # otherwise it has ended, or does not use this GPU
                        errors["processes"] = error.code
                    continue
                if size:
                    part = {"gpu_instance_id": place} if divided else {}
                    found["processes"].append({"pid": int(pid), "kind": "compute", "used_memory_bytes": size, **part})
        if "processes" in errors:
            del found["processes"]  # a partial list would mean that the other processes have ended


def _of(address: str, topology: Iterable[Node]) -> list[Node]:
    """Return the nodes of a GPU: the function of an address may be the number of a partition."""
    return [node for node in topology if node.slot == address.rpartition(".")[0]]


def _partitions(device: Device) -> list[dict[str, Any]]:
    if len(device.nodes) < 2:
        return []
    profile = device.folder.optional("current_compute_partition").lower() or None
    whole = device.identity["uuid"]  # of some kernels that of the first partition, too
    return [
        {
            "uuid": node.uuid if node.uuid not in {"", whole} else f"{whole}-{place}",
            "gpu_instance_id": place,
            "profile": profile,
            "sm_count": node.compute_units,
            "memory_total_bytes": node.memory or None,
        }
        for place, node in enumerate(device.nodes)
    ]
