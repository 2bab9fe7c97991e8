"""GPUs on the PCI bus, and AMD's in the kernel driver, which never raise; and those that the current worker has not
identified, as a pure function of driver, bus and history.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.vendors.nvidia import NVIDIA

# Reasons for which a GPU that was not identified is down, besides the return codes of its readings.
NOT_ENUMERATED, REMOVED = "not_enumerated", "removed"
# The driver denies this GPU to this user or container.
_DENIED = "no_permission"


class BusDevice(NamedTuple):
    """A GPU on the PCI bus, which in a container also shows the GPUs of others."""

    address: str  # as pci_address returns it
    elsewhere: str = ""  # why it is not the vendor's driver that has it
    visible: bool = False  # whether this process can reach it through that driver


@dataclass(frozen=True, slots=True)
class Known:
    """A GPU that was read before, by this daemon or (`remembered`) an earlier one."""

    uuid: str
    index: int = -1
    address: str = ""
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class Down:
    """A GPU that is down. `uuid` is its uuid if that is known, or made of its bus id or else of its index."""

    uuid: str
    reason: str
    index: int = -1
    address: str = ""


class Missing(NamedTuple):
    """The GPUs that are down, those that are elsewhere with the reason, and those that another uuid has replaced."""

    down: tuple[Down, ...]
    elsewhere: Mapping[str, str]
    replaced: Mapping[str, str]


def pci_address(bus_id: str) -> str:
    """Return the address of a bus id as the kernel writes it; drivers write eight digits of the domain in capitals."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if rest else ""


def bus_id(address: str) -> str:
    """Return the bus id of an address as drivers write it."""
    domain, _, rest = address.partition(":")
    return f"{domain.rjust(8, '0')}:{rest}".upper()


def unnamed(address: str, index: int, host: str) -> str:
    """Return the identity of a GPU without a known uuid: bus id or index, and `host`: others have the same bus ids."""
    return (f"PCI-{bus_id(address)}" if address else f"INDEX-{index}") + (f"-{host}" if host else "")


def missing(
    identified: Mapping[int, tuple[str, str]],
    failures: Mapping[int, str],
    count: int,
    known: Sequence[Known],
    bus: Collection[BusDevice] | None,
    enumerable: Collection[str] = (),
    host: str = "",
) -> Missing:
    """Return the GPUs that are not among the `identified`, which are uuid and address by index. `failures` are the
    reasons of the other indexes below `count`; until all are tried, only GPUs that certainly failed are returned.
    `enumerable` are the addresses that were on the `bus` when the library enumerated the GPUs.
    """
    tried = all(index in identified or index in failures for index in range(count))
    names = {uuid for uuid, _ in identified.values()}
    holders = {address: uuid for uuid, address in identified.values() if address}
    lost = [gpu for gpu in known if gpu.uuid not in names]
    replaced = {gpu.uuid: holders[gpu.address] for gpu in lost if gpu.address in holders}
    lost = [gpu for gpu in lost if gpu.uuid not in replaced]
    here = sorted({device.address for device in bus or () if device.visible}, key=_order)
    # Without the address of a GPU that works, it is not known which of the others is missing.
    sure = all(address for _, address in identified.values())
    free = [address for address in here if sure and address not in holders and address in enumerable]

    down: dict[str, Down] = {}
    addresses = _addresses(identified, count, here)
    unpaired: list[tuple[int, str]] = []
    denied = 0
    for index, reason in sorted(failures.items()):
        address = addresses.get(index, "")
        gpu = _matching(index, address, lost, indexed=not here and len(names) + len(lost) <= count)
        if gpu is None and reason == _DENIED:
            free = [other for other in free if other != address]
            denied += not address
            continue
        if gpu is None and not address:
            unpaired.append((index, reason))
            continue
        uuid = gpu.uuid if gpu else unnamed(address, index, host)
        down[uuid] = Down(uuid, reason, index, address or (gpu.address if gpu else ""))
        free = [other for other in free if other != down[uuid].address]
        lost = [other for other in lost if other.uuid != uuid]
    if not tried:
        return Missing(tuple(down.values()), {}, replaced)

    # The GPUs of the other failed indexes are among these, but which is which is not known.
    common = unpaired[0][1] if len({reason for _, reason in unpaired}) == 1 else NOT_ENUMERATED
    uncertain = len(unpaired)
    at = {gpu.address: gpu for gpu in lost if gpu.address}
    for address in free if len(free) > denied else ():
        gpu = at.get(address)
        uuid = gpu.uuid if gpu else unnamed(address, -1, host)
        down[uuid] = Down(uuid, common if uncertain > 0 else NOT_ENUMERATED, gpu.index if gpu else -1, address)
        uncertain -= 1
    elsewhere: dict[str, str] = {}
    for gpu in lost:
        if gpu.uuid in down:
            continue
        reason = _whereabouts(gpu, bus)
        if reason in {NOT_ENUMERATED, REMOVED}:
            reason = common if uncertain > 0 and reason == NOT_ENUMERATED else reason
            down[gpu.uuid] = Down(gpu.uuid, reason, gpu.index, gpu.address)
            uncertain -= 1
        else:
            elsewhere[gpu.uuid] = reason
    for index, reason in unpaired[len(unpaired) - max(0, uncertain) :]:
        uuid = unnamed("", index, host)
        down[uuid] = Down(uuid, reason, index)
    return Missing(tuple(down.values()), elsewhere, replaced)


def _addresses(identified: Mapping[int, tuple[str, str]], count: int, here: Sequence[str]) -> dict[int, str]:
    """Return the addresses of the other indexes as far as they are certain: a driver enumerates in the bus order."""
    places = {address: place for place, address in enumerate(here)}
    known = [(-1, -1), *((i, places.get(a, -2)) for i, (_, a) in sorted(identified.items())), (count, len(here))]
    if sorted(place for _, place in known) != [place for _, place in known]:
        return {}
    found: dict[int, str] = {}
    for (index, place), (next_index, next_place) in pairwise(known):
        between = here[place + 1 : next_place]
        if len(between) == next_index - index - 1:
            found |= zip(range(index + 1, next_index), between, strict=True)
    return found


def _order(address: str) -> tuple[int, str]:
    """Return the sort key of an address: domains have four digits or more."""
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


def _matching(index: int, address: str, lost: Sequence[Known], *, indexed: bool) -> Known | None:
    """Return the known GPU at an address; if none can be known and `indexed`, the one that had this index."""
    if address or not indexed:
        return next((gpu for gpu in lost if address and gpu.address == address), None)
    same = [gpu for gpu in lost if gpu.index == index]
    return same[0] if len(same) == 1 else None


def _whereabouts(gpu: Known, bus: Collection[BusDevice] | None) -> str:
    """Return why a known GPU that the driver does not enumerate is absent."""
    if bus is None or not gpu.address:
        return NOT_ENUMERATED
    found = next((device for device in bus if device.address == gpu.address), None)
    if found is None:
        return REMOVED
    if found.elsewhere:
        return found.elsewhere
    return "not visible here" if gpu.remembered and not found.visible else NOT_ENUMERATED


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
