"""One GPU of AMD: the values that are read, and the files that they are in."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from gpugauge.driver.amd.counters import Energy, Load, Residencies
from gpugauge.driver.amd.files import Files, Node, uuid_of
from gpugauge.driver.amd.table import Table, decoded
from gpugauge.driver.codes import GPU_IS_LOST, IMPLAUSIBLE, NOT_READY, NOT_SUPPORTED, DriverError, Group

_SUSPENDED = frozenset({"suspended", "suspending"})
_GENERATIONS = {25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6}  # by tenths of gigatransfers per second
_IDLE_PERCENT = 5
_BUSY = re.compile(r"\d+: *(\d+)[Mm][Hh]z")  # of pp_dpm_sclk; a line of deep sleep begins with S
_ERROR = re.compile(r"^([uc])e: *(\d+)$", re.MULTILINE)
_BLOCK = re.compile(r"aca_\w+|\w+_err_count")


class Device:
    """A GPU. `nodes` are those of KFD, in their order: one, or one for each partition."""

    def __init__(self, folder: Files, nodes: list[Node], identity: Mapping[str, Any]) -> None:
        self.folder, self.nodes, self.identity = folder, nodes, identity
        self.lacks: set[str] = set()
        """The fields that are not supported, as far as that is known."""
        self.renewed: list[Node] | None = None
        """Its nodes after a change of the topology, until they are taken."""
        self.apu: bool | None = None  # None until gpu_metrics could be read
        self.load, self._energy, self._residencies = Load(), Energy(), Residencies()
        self._proven: set[str] = set()
        self._unknown: set[object] = set()  # headers without a layout
        self._blocks: set[str] = set()  # that have counted errors
        self._table: Table | DriverError = DriverError(NOT_SUPPORTED, "gpu_metrics")
        self._hwmon = ""

    def read(self, groups: Iterable[Group], now: float) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return values by group and codes of failed fields; those of one that sleeps are empty. Raises DriverError."""
        values: dict[str, dict[str, Any]] = {group: {} for group in groups}
        errors: dict[str, str] = {}
        if not os.path.isdir(self.folder.folder):  # noqa: PTH112  (pathlib would be 0.7 MB of the worker)
            raise DriverError(GPU_IS_LOST, "sysfs")
        if "static" in values:
            values["static"] = {**self.identity, **self._static()}
        if self.folder.optional("power/runtime_status") in _SUSPENDED:
            self.load.restart()
            return values, errors
        self._read_table()
        for group, fields, sources in ROWS:
            if group in values:
                self._read_row(values[group], errors, fields, sources)
        if isinstance(self._table, Table):
            if "fast" in values and (mean := self.load.add(self._table, now)):
                values["fast"] |= {"utilization_mean_percent": mean[0], "utilization_mean_seconds": mean[1]}
            if "normal" in values:
                self._read_counters(values["normal"], self._table, now)
        return values, errors

    def _static(self) -> dict[str, Any]:
        node = self.nodes[0] if self.nodes else None
        units = sum(node.compute_units or 0 for node in self.nodes)
        target = node.target if node else ""
        version = node.facts.get("gfx_target_version", 0) if node else 0
        facts = {
            "vbios_version": self.folder.optional("vbios_version"),
            "serial": self.folder.optional("serial_number"),
            "compute_capability": (version // 10000, version // 100 % 100) if version else None,
            "gfx_target": target,
            "multiprocessors": units,
            "local_cpus": self.folder.optional("local_cpulist"),
            "compute_partition": self.folder.optional("current_compute_partition"),
            "memory_partition": self.folder.optional("current_memory_partition"),
            "mig_mode": len(self.nodes) > 1,
        }
        numa = self.folder.optional("numa_node")
        return {name: fact for name, fact in facts.items() if fact} | (
            {"numa_node": int(numa)} if numa.isdigit() else {}
        )

    def _read_table(self) -> None:
        try:
            self._table = table = decoded(self.folder.bytes("gpu_metrics"))
        except DriverError as error:
            self._table = error
            if error.code == NOT_SUPPORTED and self.apu is None:
                self.apu = False
            return
        self.apu = bool(self.apu) or table.of_apu
        if not table.known and table.header not in self._unknown:
            self._unknown.add(table.header)
            major, minor, size = table.header
            text = f"gpu_metrics {major}.{minor} of {size} bytes is not known: its values are absent"
            sys.stderr.write(f"gpugauge: {self.identity['pci_bus_id']}: {text}\n")

    def _read_row(
        self, found: dict[str, Any], errors: dict[str, str], fields: tuple[str, ...], sources: tuple[Source, ...]
    ) -> None:
        code = NOT_SUPPORTED
        for source in sources:
            try:
                value = source(self)
            except DriverError as error:
                code = error.code if code == NOT_SUPPORTED else code
                continue
            except ValueError:
                code = IMPLAUSIBLE
                continue
            if value is not None:
                given = value if isinstance(value, tuple) else (value,)
                found.update(zip(fields, given, strict=True))
                self._proven.update(fields)
                self.lacks -= set(fields)
                return
        errors |= dict.fromkeys(fields, code)
        if code == NOT_SUPPORTED and not self._proven.intersection(fields):
            self.lacks.update(fields)

    def _read_counters(self, found: dict[str, Any], table: Table, now: float) -> None:
        milliwatts = found.get("power_milliwatts")
        energy = self._energy.add(table.one("energy"), milliwatts and milliwatts / 1000, now)
        if energy is not None:
            found["energy_millijoules"] = energy
        busy = max((table.one(name) or 0 for name in ("gfx", "xcc_busy")), default=0)
        idle = busy < _IDLE_PERCENT
        reasons = self._residencies.add(table, self.load, idle=idle)
        if reasons is not None:
            active, counted = reasons
            found |= {"clocks_event_reasons": active, "clocks_event_nanoseconds": counted}
            found["clocks_event_reasons_supported"] = list(counted)

    def table(self, name: str) -> int | None:
        """Return a value of `gpu_metrics`. Raises DriverError if that cannot be read."""
        return max(self.values(name), default=None)

    def values(self, name: str) -> tuple[int, ...]:
        """Return the values of a field of `gpu_metrics`. Raises DriverError if that cannot be read."""
        if isinstance(self._table, DriverError):
            raise self._table
        return self._table.values.get(name, ())

    def hwmon(self, name: str) -> int | None:
        """Return the number in a file of hwmon, whose folder may change. Raises DriverError."""
        for again in (False, True):
            if again or not self._hwmon:
                self._hwmon = next(iter(self.folder.names("hwmon")), "")
            try:
                return self.folder.number(f"hwmon/{self._hwmon}/{name}")
            except DriverError as error:
                if again or error.code != NOT_SUPPORTED:
                    raise
        return None

    def errors_counted(self) -> dict[str, int] | None:
        """Return the errors of all blocks. Raises DriverError if one does not answer: the sum would fall, then rise."""
        total = {"c": 0, "u": 0}
        answered = set()
        for name in filter(_BLOCK.fullmatch, self.folder.names("ras")):
            try:
                found = _ERROR.findall(self.folder.text(f"ras/{name}"))
            except DriverError as error:
                if error.code != NOT_SUPPORTED or name in self._blocks:
                    raise
                continue
            if len(found) != len(total):  # a reset is answered by words
                raise DriverError(NOT_READY, "ras")
            answered.add(name)
            for kind, count in found:
                total[kind] += int(count)
        self._blocks = answered
        return {"corrected_volatile": total["c"], "uncorrected_volatile": total["u"]} if answered else None


# Reads one value, or one for each field of the row; None for a value that the source does not have. Raises DriverError,
# or ValueError for a value that cannot be true.
Source: TypeAlias = Callable[[Device], Any]


def _plausible(value: int | None, low: int, high: int) -> int | None:
    """Return a value, None for 0 where that is none: the second die of an MI250X has no power. Raises ValueError."""
    if value == 0 < low:
        return None
    if value is not None and not low <= value <= high:
        raise ValueError(value)
    return value


def _table(name: str, low: int, high: int, factor: float = 1) -> Source:
    return lambda device: _scaled(_plausible(device.table(name), low, high), factor)


def _hwmon(name: str, low: int, high: int, factor: float = 1) -> Source:
    """Return the source for a file; the bounds are those of the value, the factor makes it from the number."""
    return lambda device: _plausible(_scaled(device.hwmon(name), factor), low, high)


def _scaled(value: int | None, factor: float) -> int | None:
    return None if value is None else round(value * factor)


def _file(name: str, low: int, high: int) -> Source:
    return lambda device: _plausible(device.folder.number(name), low, high)


def _busy(device: Device) -> int | None:
    values = device.values("xcc_busy")
    return _plausible(round(sum(values) / len(values)), 0, 100) if values else None


def _memory(device: Device) -> tuple[int, int, int] | None:
    """Return total, used and free bytes; None for an APU, which uses the memory of the machine."""
    total, used = (device.folder.number(f"mem_info_vram_{part}") for part in ("total", "used"))
    if total is None or used is None or device.apu is not False:
        return None
    if not 0 < total < 1 << 50 or not 0 <= used <= total:
        raise ValueError(used)
    return total, used, total - used


def _highest_clock(name: str) -> Source:
    def read(device: Device) -> int | None:
        clocks = [int(clock) for clock in _BUSY.findall(device.folder.text(name))]
        return _plausible(max(clocks), *_MHZ) if clocks else None

    return read


def _shader_clock(device: Device) -> tuple[int, int] | None:
    for read in (_table("gfxclk", *_MHZ), _hwmon("freq1_input", *_MHZ, 1e-6)):
        try:
            clock = read(device)
        except DriverError:
            continue
        if clock is not None:
            return clock, clock
    return None


def _sum(name: str, factor: int) -> Source:
    """Return the source for the sum over the links of a GPU."""

    def read(device: Device) -> int | None:
        found = device.values(name)
        return _plausible(factor * sum(found), 0, (1 << 63) - 1) if found else None

    return read


_PERCENT, _CELSIUS, _MHZ, _LANES = (0, 100), (1, 200), (0, 100_000), (1, 32)
_MILLIWATTS, _WATTS = (1, 10_000_000), (1, 10_000)
_KELVIN = 1e-3  # of thousandths of a degree
_KILOBYTE = 1000  # of the firmware, whose sources do not say whether it means 1024

# Group, fields and sources.
Row: TypeAlias = tuple[Group, tuple[str, ...], tuple[Source, ...]]


def _row(group: Group, field: str, *sources: Source) -> Row:
    return group, (field,), sources


ROWS: tuple[Row, ...] = (
    _row("fast", "utilization_percent", _table("gfx", *_PERCENT), _busy, _file("gpu_busy_percent", *_PERCENT)),
    _row(
        *("fast", "memory_utilization_percent"),
        *(_table("memory_activity", *_PERCENT), _file("mem_busy_percent", *_PERCENT)),
    ),
    ("normal", ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"), (_memory,)),
    _row(
        *("normal", "power_milliwatts"),
        *(_table("watts", *_WATTS, 1000), _table("milliwatts", *_MILLIWATTS)),
        *(_hwmon(f"power1_{name}", *_MILLIWATTS, 1e-3) for name in ("average", "input")),
    ),
    _row("normal", "power_limit_milliwatts", _hwmon("power1_cap", *_MILLIWATTS, 1e-3)),
    _row(
        *("normal", "temperature_celsius"),
        *(_table("temperature", *_CELSIUS), _hwmon("temp2_input", *_CELSIUS, _KELVIN)),
        *(_table("centidegrees", 100, 20_000, 0.01), _hwmon("temp1_input", *_CELSIUS, _KELVIN)),
    ),
    _row(
        *("normal", "memory_temperature_celsius"),
        *(_table("memory_temperature", *_CELSIUS), _hwmon("temp3_input", *_CELSIUS, _KELVIN)),
    ),
    ("normal", ("clock_graphics_mhz", "clock_sm_mhz"), (_shader_clock,)),
    _row("normal", "clock_memory_mhz", _table("uclk", *_MHZ), _hwmon("freq2_input", *_MHZ, 1e-6)),
    _row("slow", "power_limit_default_milliwatts", _hwmon("power1_cap_default", *_MILLIWATTS, 1e-3)),
    _row("slow", "power_limit_min_milliwatts", _hwmon("power1_cap_min", *_MILLIWATTS, 1e-3)),
    _row("slow", "power_limit_max_milliwatts", _hwmon("power1_cap_max", *_MILLIWATTS, 1e-3)),
    _row("slow", "temperature_slowdown_celsius", _hwmon("temp2_crit", *_CELSIUS, _KELVIN)),
    _row("slow", "temperature_shutdown_celsius", _hwmon("temp2_emergency", *_CELSIUS, _KELVIN)),
    _row("slow", "temperature_memory_max_celsius", _hwmon("temp3_crit", *_CELSIUS, _KELVIN)),
    _row("slow", "clock_sm_max_mhz", _highest_clock("pp_dpm_sclk")),
    _row("slow", "clock_memory_max_mhz", _highest_clock("pp_dpm_mclk")),
    _row("slow", "ecc_errors", Device.errors_counted),
    _row("slow", "pcie_width", _table("lanes", *_LANES)),
    _row("slow", "pcie_generation", lambda device: _GENERATIONS.get(device.table("speed") or 0)),
    _row("slow", "pcie_replays", _table("replays", 0, (1 << 63) - 1)),
    _row("slow", "xgmi_transmitted_bytes", _sum("xgmi_written", _KILOBYTE)),
    _row("slow", "xgmi_received_bytes", _sum("xgmi_read", _KILOBYTE)),
)


def identity(address: str, folder: Files, nodes: list[Node], ids: str, boot: str) -> dict[str, Any]:
    """Return what identifies a GPU. `ids` is the text of amdgpu.ids, `boot` is for GPUs without a uuid of their own."""
    unique = folder.optional("unique_id")
    number = int(unique, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", unique) else 0
    own = uuid_of(number) or (nodes[0].uuid if len(nodes) == 1 else "")
    target = nodes[0].target if nodes else ""
    name = (
        folder.optional("product_name") or _product(folder, ids) or f"AMD {target or folder.optional('device')}".strip()
    )
    return {
        "vendor": "AMD",
        "uuid": own or f"AMD-{address}" + (f"-{boot}" if boot else ""),
        "name": name if name.startswith("AMD") else f"AMD {name}",
        "pci_bus_id": address,
    }


def _product(folder: Files, ids: str) -> str:
    """Return the name of the product in a text of lines "744C, CC, AMD Radeon RX 7900 XTX"."""
    device, revision = (folder.optional(name).removeprefix("0x").upper() for name in ("device", "revision"))
    found = re.search(rf"^{device},\s*{revision.zfill(2)},\s*(\S.*)$", ids, re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found and device else ""
