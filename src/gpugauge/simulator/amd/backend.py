"""The test double of amdgpu: the files that the GPUs of AMD in a scenario have, as amdgpu and KFD would show them, and
the backend that reads them.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.codes import Group
from gpugauge.simulator.device.device import NVLINK_BYTES, Device
from gpugauge.simulator.device.rings import UPTIME
from gpugauge.simulator.device.world import World

_HERTZ = 1000  # cycles of the firmware per second
_MOST_PARTITIONS = 8
# Attributes of the layout that describes itself: name, id, number of the type, and the type.
_U16, _U32, _U64 = (3, "H"), (5, "I"), (7, "Q")
_ATTRIBUTES = (
    *(("hotspot", 0, _U16), ("memory", 1, _U16), ("watts", 3, _U16), ("gfx", 4, _U16), ("umc", 5, _U16)),
    *(("energy", 7, _U64), ("counter", 9, _U32), ("prochot", 10, _U32), ("ppt", 11, _U32), ("thermal", 12, _U32)),
    *(("zero", 13, _U32), ("zero", 14, _U32), ("lanes", 16, _U16), ("speed", 17, _U16), ("acc", 20, _U32)),
    *(("replays", 25, _U64), ("xgmi", 29, _U64), ("xgmi", 30, _U64), ("clock", 33, _U16), ("memory_clock", 37, _U16)),
)
_SPEEDS = {1: 25, 2: 50, 3: 80, 4: 160, 5: 320, 6: 640}  # by generation of PCIe, in tenths of gigatransfers
_REASONS = {
    "prochot": ("hw_slowdown", "hw_power_brake_slowdown"),
    "ppt": ("sw_power_cap",),
    "thermal": ("sw_thermal_slowdown", "hw_thermal_slowdown"),
}


class Machine:
    """The folders `sys` and `proc` below `root`."""

    def __init__(self, root: Path, devices: Sequence[Device]) -> None:
        self._root, self._devices = root, devices
        self._written: dict[Path, bytes] = {}
        self._put(root / "sys/module/amdgpu/version", "6.16.13")
        self._put(root / "sys/class/kfd/kfd/topology/generation_id", "1")

    def write(self, t: float) -> None:
        """Write the files as they are at a second of the scenario."""
        for device in self._devices:
            address = device.bus_id.lower()[4:]
            folder = self._root / "sys/devices/pci0000:00" / address
            link = self._root / f"sys/class/drm/card{device.index}/device"
            if not device.present(t):
                shutil.rmtree(folder, ignore_errors=True)
                self._written = {path: text for path, text in self._written.items() if folder not in path.parents}
                continue
            if not link.is_symlink():
                link.parent.mkdir(parents=True)
                link.symlink_to(folder)
                self._write_topology(device, address)
            for name, content in {**_fixed(device), **_values(device, t)}.items():
                self._put(folder / name, content)
            self._write_processes(device, t)

    def _write_topology(self, device: Device, address: str) -> None:
        domain, bus, slot = (int(part, 16) for part in address.partition(".")[0].split(":"))
        amd = device.figures["amd"]
        parts = _partitions(device)
        facts = {"simd_count": 4 * amd["units"] // parts, "simd_per_cu": 4, "gfx_target_version": amd["target"]}
        for place in range(parts):
            facts |= {"domain": domain, "location_id": bus << 8 | slot << 3 | place}
            facts |= {"unique_id": _unique(device) and _unique(device) + place}
            folder = self._root / f"sys/class/kfd/kfd/topology/nodes/{_MOST_PARTITIONS * device.index + place + 1}"
            self._put(folder / "gpu_id", str(_kfd_id(device, place)))
            self._put(folder / "properties", "\n".join(f"{name} {value}" for name, value in facts.items()))
            self._put(folder / "mem_banks/0/properties", f"size_in_bytes {device.memory_total // parts}")

    def _write_processes(self, device: Device, t: float) -> None:
        alive = {p.pid: p.memory for kind in ("compute", "mps") for p in device.running(kind, t)}
        for number, process in enumerate(device.processes):
            gpu_id = _kfd_id(device, number % _partitions(device))  # each is in a partition
            path = self._root / f"sys/class/kfd/kfd/proc/{process.pid}/vram_{gpu_id}"
            if process.pid in alive:
                self._put(path, str(alive[process.pid] or 0))
            elif self._written.pop(path, None) is not None:
                path.unlink()

    def _put(self, path: Path, content: str | bytes) -> None:
        data = content if isinstance(content, bytes) else f"{content}\n".encode()
        if self._written.get(path) != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            self._written[path] = data


def _unique(device: Device) -> int:
    return int(device.uuid.removeprefix("GPU-"), 16) if device.uuid.startswith("GPU-") else 0


def _partitions(device: Device) -> int:
    count: int = device.figures["amd"].get("partitions", 1)
    return count


def _kfd_id(device: Device, place: int) -> int:
    return 1000 + _MOST_PARTITIONS * device.index + place


def _fixed(device: Device) -> dict[str, str]:
    number = _unique(device)
    clock, memory_clock = device.figures["clock"], device.figures["clock_memory"]
    return {
        "vendor": "0x1002",
        "device": device.figures["amd"]["device"],
        "class": "0x120000",
        "product_name": device.name,
        "vbios_version": device.figures["vbios"],
        "numa_node": str(device.index // 4),
        "local_cpulist": f"{32 * (device.index // 4)}-{32 * (device.index // 4) + 31}",
        "power/runtime_status": "active",
        "current_compute_partition": "SPX" if _partitions(device) == 1 else "CPX",
        "current_memory_partition": "NPS1",
        "mem_info_vram_total": str(device.memory_total),
        "pp_dpm_sclk": f"0: {clock[1]}Mhz *\n1: {clock[0]}Mhz",
        "pp_dpm_mclk": f"0: {memory_clock[1]}Mhz\n1: {memory_clock[0]}Mhz *",
        "hwmon/hwmon0/power1_cap": str(round(device.power_limit_watts * 1e6)),
        "hwmon/hwmon0/power1_cap_default": str(round(device.default_limit_watts * 1e6)),
        "hwmon/hwmon0/temp2_crit": "100000",
        **({"unique_id": f"{number:016x}", "serial_number": device.serial} if number else {}),
    }


def _values(device: Device, t: float) -> dict[str, str | bytes]:
    errors = {kind: device.health.ecc_errors(kind, 0.0, t) for kind in ("corrected", "uncorrected")}
    ras = f"ue: {errors['uncorrected']}\nce: {errors['corrected']}"
    return {
        "gpu_metrics": _TABLES[device.figures["amd"]["table"]](_figures(device, t)),
        "gpu_busy_percent": str(device.utilization(t)),
        "mem_info_vram_used": str(device.memory_used(t) + device.memory_reserved),
        "hwmon/hwmon0/power1_average": str(1000 * device.power(t)),
        "hwmon/hwmon0/temp2_input": str(1000 * device.temperature(t)),
        **({"ras/umc_err_count": ras} if device.figures["amd"]["ecc"] else {}),
    }


def _figures(device: Device, t: float) -> dict[str, int]:
    generation, lanes = device.pcie(t)
    temperature = device.temperature(t)
    throttled = {
        name: sum(device.since_reset(partial(device.health.throttled_seconds, reason), t) for reason in reasons)
        for name, reasons in _REASONS.items()
    }
    return {
        "hotspot": temperature,
        "memory": temperature + 4,
        "watts": round(device.power(t) / 1000),
        "milliwatts": device.power(t),
        "gfx": min(100, round(100 * (device.busy(t) - device.busy(t - 1)))),
        "umc": device.utilization(t, "memory"),
        "energy": device.energy(t) * 65536 // 1000,
        "counter": round((UPTIME + t) * _HERTZ),
        "acc": round(100 * _HERTZ * device.since_reset(device.busy, t)),
        "lanes": lanes,
        "speed": _SPEEDS[generation],
        "replays": device.health.counted("pcie_replays", t),
        "xgmi": round(device.since_reset(device.moved, t) * NVLINK_BYTES / 1000),
        "clock": device.clock(0, t) or 0,
        "memory_clock": device.clock(2, t) or 0,
        "zero": 0,
        **{name: round(seconds * _HERTZ) for name, seconds in throttled.items()},
    }


def _self_describing(figures: Mapping[str, int]) -> bytes:
    content = b""
    for name, number, (kind, form) in _ATTRIBUTES:
        value = figures[name] & (1 << 8 * struct.calcsize("<" + form)) - 1
        content += struct.pack(f"<Q{form}", kind << 20 | number << 10 | 1, value)
    return struct.pack("<HBBi", 8 + len(content), 1, 9, len(_ATTRIBUTES)) + content


def _filled(size: int, header: tuple[int, int], values: Mapping[int, tuple[str, int]]) -> bytes:
    """Return a structure with values by offset; others are not supported."""
    content = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", content, 0, size, *header)
    for offset, (form, value) in values.items():
        struct.pack_into("<" + form, content, offset, value)
    return bytes(content)


def _radeon(f: Mapping[str, int]) -> bytes:
    values = {6: ("H", f["hotspot"]), 8: ("H", f["memory"]), 16: ("H", f["gfx"]), 18: ("H", f["umc"])}
    values |= {22: ("H", f["watts"]), 24: ("Q", 0xFFFFFFFF), 54: ("H", f["clock"]), 58: ("H", f["memory_clock"])}
    return _filled(120, (1, 3), values | {74: ("H", f["lanes"]), 76: ("H", f["speed"])})


def _apu(f: Mapping[str, int]) -> bytes:
    values = {4: ("H", 100 * f["hotspot"]), 112: ("I", f["milliwatts"]), 174: ("H", f["clock"])}
    return _filled(264, (3, 0), values)


_TABLES = {"1.9": _self_describing, "1.3": _radeon, "3.0": _apu}


class SimulatedAmd(Amd):
    """Reads the files that the GPUs of a scenario have at the time of each reading."""

    def open(self, *, simulate: Mapping[str, Any]) -> None:  # type: ignore[override]  # the paths are those of the scenario
        """Write the files, and find the GPUs in them. Raises DriverError without any."""
        self._world = World(simulate, self._clock)
        self._folder = tempfile.TemporaryDirectory(prefix="gpugauge-amd-")
        root = Path(self._folder.name)
        self._machine = Machine(root, [device for device in self._world.devices if device.is_amd])
        self._machine.write(self._world.now())
        super().open(str(root / "sys"), str(root / "proc"))

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Write the files of now, and read them. Raises DriverError."""
        self._machine.write(self._world.now())
        return super().read(index, groups)

    def close(self) -> None:
        """Remove the files."""
        super().close()
        self._folder.cleanup()
