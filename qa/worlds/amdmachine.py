"""A drawn machine with GPUs of AMD, as files: the structures are those of the kernel's header, laid out by ctypes, and
the values follow from drawn loads. What the files say is compared with what is exported of them.
"""

from __future__ import annotations

import ctypes
import errno
import random
import struct
from collections.abc import Iterator
from ctypes import c_uint16 as u16
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from pathlib import Path
from typing import Any

SECONDS = 75
ABSENT = -1  # all bits are set
ONES = {u16: 0xFFFF, u32: 0xFFFFFFFF, u64: 0xFFFFFFFFFFFFFFFF}
_Fields = list[tuple[str, Any]]

_TEMPERATURES: _Fields = [("temperature_hotspot", u16), ("temperature_mem", u16), ("temperature_vrsoc", u16)]
_ACTIVITY: _Fields = [("curr_socket_power", u16), ("average_gfx_activity", u16), ("average_umc_activity", u16)]
_ENERGY: _Fields = [("energy_accumulator", u64), ("system_clock_counter", u64)]
_RESIDENCIES: _Fields = [
    (f"{name}_residency_acc", u32) for name in ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
]
_LINKS: _Fields = [(name, u16) for name in ("pcie_link_width", "pcie_link_speed", "xgmi_link_width", "xgmi_link_speed")]
_ACCUMULATED: _Fields = [("gfx_activity_acc", u32), ("mem_activity_acc", u32)]
_PCIE: _Fields = [
    (f"pcie_{name}", u64)
    for name in (
        "bandwidth_acc",
        "bandwidth_inst",
        "l0_to_recov_count_acc",
        "replay_count_acc",
        "replay_rover_count_acc",
    )
]
_NAKS: _Fields = [("pcie_nak_sent_count_acc", u32), ("pcie_nak_rcvd_count_acc", u32)]
_XGMI: _Fields = [("xgmi_read_data_acc", u64 * 8), ("xgmi_write_data_acc", u64 * 8)]
_CLOCKS: _Fields = [
    *[("firmware_timestamp", u64), ("current_gfxclk", u16 * 8), ("current_socclk", u16 * 4)],
    *[("current_vclk0", u16 * 4), ("current_dclk0", u16 * 4), ("current_uclk", u16)],
]


def _struct(name: str, *fields: _Fields) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": [field for part in fields for field in part]})


_HEAD: _Fields = [("structure_size", u16), ("format_revision", ctypes.c_uint8), ("content_revision", ctypes.c_uint8)]
_XCP: _Fields = [("gfx_busy_inst", u32 * 8), ("jpeg_busy", u16 * 32), ("vcn_busy", u16 * 4), ("gfx_busy_acc", u64 * 8)]
Xcp0 = _struct("Xcp0", _XCP)
Xcp1 = _struct("Xcp1", _XCP, [("gfx_below_host_limit_acc", u64 * 8)])
Xcp2 = _struct(
    "Xcp2",
    [("gfx_busy_inst", u32 * 8), ("jpeg_busy", u16 * 40), ("vcn_busy", u16 * 4), ("gfx_busy_acc", u64 * 8)],
    [(f"below_{name}", u64 * 8) for name in ("ppt", "thm", "low", "total")],
)
_VCN: _Fields = [("vcn_activity", u16 * 4)]
_JPEG: _Fields = [("jpeg_activity", u16 * 32)]
_STATUS: _Fields = [("throttle_status", u32), ("gfxclk_lock_status", u32)]
_LOCK: _Fields = [("gfxclk_lock_status", u32)]
_PAD: _Fields = [("padding", u16)]
_COUNTER: _Fields = [("accumulation_counter", u32)]
_LINK_STATUS: _Fields = [("xgmi_link_status", u16 * 8), ("padding", u16)]


def _parts(kind: Any) -> _Fields:
    return [("num_partition", u16), ("xcp_stats", kind * 8), ("pcie_lc_perf_other_end_recovery", u32)]


LAYOUTS: dict[tuple[int, int, int], Any] = {
    (1, 3, 120): _struct(
        "V1_3",
        _HEAD,
        [(f"temperature_{name}", u16) for name in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem")],
        [(f"average_{name}_activity", u16) for name in ("gfx", "umc", "mm")],
        [("curr_socket_power", u16), *_ENERGY],
        [(f"average_{name}", u16) for name in ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")],
        [(f"current_{name}", u16) for name in ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")],
        [("throttle_status", u32), ("current_fan_speed", u16), ("pcie_link_width", u16), ("pcie_link_speed", u16)],
        [*_PAD, *_ACCUMULATED, ("temperature_hbm", u16 * 4), ("firmware_timestamp", u64)],
        [(f"voltage_{name}", u16) for name in ("soc", "gfx", "mem")],
        [("padding1", u16), ("indep_throttle_status", u64)],
    ),
    (1, 4, 288): _struct(
        *("V1_4", _HEAD, _TEMPERATURES, _ACTIVITY, _VCN, _ENERGY, _STATUS, _LINKS, _ACCUMULATED, _PCIE, _XGMI, _CLOCKS),
        _PAD,
    ),
    (1, 5, 360): _struct(
        *("V1_5", _HEAD, _TEMPERATURES, _ACTIVITY, _VCN, _JPEG, _ENERGY, _STATUS, _LINKS, _ACCUMULATED, _PCIE, _NAKS),
        *(_XGMI, _CLOCKS, _PAD),
    ),
    (1, 6, 384): _struct(
        *("V1_6", _HEAD, _TEMPERATURES, _ACTIVITY, _VCN, _JPEG, _ENERGY, _COUNTER, _RESIDENCIES, _STATUS, _LINKS),
        *(_ACCUMULATED, _PCIE, _NAKS, _XGMI, _CLOCKS, _PAD),
    ),
    (1, 6, 1664): _struct(
        *("V1_6b", _HEAD, _TEMPERATURES, _ACTIVITY, _ENERGY, _COUNTER, _RESIDENCIES, _LOCK, _LINKS, _ACCUMULATED),
        *(_PCIE, _NAKS, _XGMI, _CLOCKS, _parts(Xcp0)),
    ),
    (1, 7, 2208): _struct(
        *("V1_7", _HEAD, _TEMPERATURES, _ACTIVITY, [("mem_max_bandwidth", u64)], _ENERGY, _COUNTER, _RESIDENCIES),
        *(_LOCK, _LINKS, _ACCUMULATED, _PCIE, _NAKS, _XGMI, _LINK_STATUS, _CLOCKS, _parts(Xcp1)),
    ),
    (1, 8, 3872): _struct(
        *("V1_8", _HEAD, _TEMPERATURES, _ACTIVITY, [("mem_max_bandwidth", u64)], _ENERGY, _COUNTER, _RESIDENCIES),
        *(_LOCK, _LINKS, _ACCUMULATED, _PCIE, _NAKS, _XGMI, _LINK_STATUS, _CLOCKS, _parts(Xcp2)),
    ),
}
DESCRIBING = (1, 9, 0)
APU = (3, 0, 264)
# Of the layout that describes itself: name, id, and the types that it may have.
_H, _I, _Q = 3, 5, 7
ATTRIBUTES = [
    *[("temperature_hotspot", 0, (_H, 2)), ("temperature_mem", 1, (_H,)), ("temperature_vrsoc", 2, (_H,))],
    *[("curr_socket_power", 3, (_H, _I)), ("average_gfx_activity", 4, (_H, _I)), ("average_umc_activity", 5, (_H,))],
    *[("mem_max_bandwidth", 6, (_Q,)), ("energy_accumulator", 7, (_Q,)), ("system_clock_counter", 8, (_Q,))],
    *[("accumulation_counter", 9, (_I, _Q)), ("prochot_residency_acc", 10, (_I, _Q)), ("ppt_residency_acc", 11, (_I,))],
    *[
        ("socket_thm_residency_acc", 12, (_I,)),
        ("vr_thm_residency_acc", 13, (_I,)),
        ("hbm_thm_residency_acc", 14, (_I,)),
    ],
    *[("gfxclk_lock_status", 15, (_I,)), ("pcie_link_width", 16, (_H,)), ("pcie_link_speed", 17, (_H,))],
    *[("gfx_activity_acc", 20, (_I, _Q)), ("mem_activity_acc", 21, (_I, _Q)), ("pcie_replay_count_acc", 25, (_Q, _I))],
    *[("xgmi_read_data_acc", 29, (_Q,)), ("xgmi_write_data_acc", 30, (_Q,))],
    *[("firmware_timestamp", 32, (_Q,)), ("current_gfxclk", 33, (_H,)), ("current_uclk", 37, (_H,))],
    *[("gfx_busy_inst", 40, (_I,)), ("gfx_busy_acc", 43, (_Q,)), ("aid", 49, (_I, _H))],
]
_FORMS = "BbHhIiQq"


class Gpu:
    """A drawn GPU. `write` writes its files as they are at a second; `truth` is what may be exported then."""

    def __init__(self, dice: random.Random, root: Path, number: int) -> None:
        self.dice, self.root, self.number = dice, root, number
        self.layout = dice.choice([*LAYOUTS, *[(1, 7, 2208), DESCRIBING, DESCRIBING, APU, (1, 3, 121)]])
        self.address = f"0000:{0x40 + 8 * number:02x}:00.0"
        self.unique = dice.getrandbits(63) if self.layout != APU and dice.random() < 0.9 else 0
        self.folder = root / "sys/devices/pci0000:40" / self.address
        self.folder.mkdir(parents=True)
        self.node_id, self.gpu_id = number + 2, dice.randint(1, 65535)
        self.xccs = dice.choice([1, 6, 8])
        # Some firmware has no values of the whole GPU.
        self.partial = self.layout in {(1, 6, 1664), (1, 7, 2208), (1, 8, 3872), DESCRIBING} and dice.random() < 0.2
        # What the accumulator adds in a cycle of full load; some add nothing that fits.
        self.unit = dice.choice([100, 100, 100, 1, 1, 0, 7])
        self.hertz = dice.choice([1000, 1000, 1000, 500, 4000])
        self.energy_kind = dice.choice(["right", "right", "right", "constant", "zero", "other unit"])
        self.watts_kind = dice.choice(["right", "right", "right", "zero"])
        self.ghosts = {name for name, _ in _RESIDENCIES if dice.random() < 0.2}
        self.absent = {name for name in ("temperature_mem", "pcie_link_width", "current_uclk") if dice.random() < 0.2}
        self.idle_watts, self.most_watts = dice.randint(20, 140), dice.randint(300, 1000)
        self.cap, self.memory = dice.choice([None, 750_000_000, 300_000_000]), dice.randint(1 << 30, 1 << 38)
        self.start = {"counter": dice.choice([5_000, 1 << 31, (1 << 32) - 30_000]), "acc": dice.getrandbits(32)}
        self.start["energy"] = dice.randint(1 << 20, 1 << 40)
        self.loads = list(self._loads())
        self.smooth = dice.random() < 0.5  # the instantaneous values
        self.throttled = {name: dice.choice([0.0, 0.0, 0.3, 0.8]) for name, _ in _RESIDENCIES}
        self.errors = [dice.randint(0, 9), dice.choice([0, 0, 1])] if dice.random() < 0.6 else None
        self.replays = dice.randint(0, 1000)
        self.unlinked = set(range(8)) if dice.random() < 0.2 else {link for link in range(8) if dice.random() < 0.2}
        self.uses = {
            pid: dice.choice([0, 1 << 20, 1 << 32]) for pid in dice.sample(range(100, 999), dice.randint(0, 4))
        }
        # Seconds in which files fail, and how.
        self.faults: dict[int, str] = {}
        if dice.random() < 0.5:
            kinds = ("truncated", "empty", "other", "refused", "busy", "suspended", "gone", "ras words")
            for _ in range(dice.randint(1, 3)):
                kind, length = dice.choice(kinds), dice.choice([1, 1, 3, 12])
                begin = dice.randint(3 if kind == "gone" else 0, SECONDS)
                self.faults |= dict.fromkeys(range(begin, begin + length), kind)
        if dice.random() < 0.1:  # the firmware starts again
            self.faults |= {dice.randint(20, SECONDS): "restart"}
        self.restarted = next((s for s, kind in self.faults.items() if kind == "restart"), 10**9)
        self.kinds = {name: dice.choice(kinds) for name, _, kinds in ATTRIBUTES}
        self._write_static()

    def _loads(self) -> Iterator[float]:
        """Yield the load of each second."""
        shape = self.dice.choice(["idle", "full", "steady", "waves", "random", "late"])
        steady = self.dice.uniform(0.1, 1.0)
        for second in range(SECONDS + 1):
            steps = {"idle": 0.0, "full": 1.0, "steady": steady, "waves": float(second % 20 < 9)}
            steps |= {"random": self.dice.random(), "late": steady * (second > 40)}
            yield steps[shape]

    def busy(self, t: float) -> float:
        """Return the busy seconds from the start to a time."""
        whole = int(t)
        return sum(self.loads[:whole]) + (t - whole) * self.loads[min(whole, SECONDS)]

    def fault(self, t: float) -> str:
        return self.faults.get(int(t), "")

    def watts(self, t: float) -> int:
        return round(self.idle_watts + self.most_watts * self.loads[min(int(t), SECONDS)])

    def instant(self, t: float) -> int:
        """Return the percentage at an instant."""
        share = self.loads[min(int(t), SECONDS)]
        if self.smooth:
            return round(100 * share)
        return 100 * (random.Random(f"{self.unique} {self.number} {t}").random() < share)

    def values(self, t: float) -> dict[str, Any]:
        """Return the values of the structure by name."""
        since = t - self.restarted if t >= self.restarted else t
        begin = {"counter": 0, "acc": 0} if t >= self.restarted else self.start
        busy = self.busy(t) - (self.busy(self.restarted) if t >= self.restarted else 0.0)
        cycles, acc = begin["counter"] + round(since * self.hertz), begin["acc"] + round(busy * self.hertz * self.unit)
        joules = self.idle_watts * t + self.most_watts * self.busy(t)
        energy = {"right": self.start["energy"] + round(joules * 65536), "constant": ONES[u32], "zero": 0}
        energy["other unit"] = round(joules * 1.01)
        spent = {name: share * since * self.hertz for name, share in self.throttled.items()}
        found = {
            "temperature_hotspot": 40 + round(50 * self.loads[min(int(t), SECONDS)]),
            "temperature_mem": 45,
            "curr_socket_power": 0 if self.watts_kind == "zero" else self.watts(t),
            "average_gfx_activity": ABSENT if self.partial else self.instant(t),
            "average_umc_activity": self.instant(t) // 2,
            "energy_accumulator": energy[self.energy_kind],
            "accumulation_counter": cycles,
            "gfx_activity_acc": ABSENT if self.partial else acc,
            "pcie_link_width": 16,
            "pcie_link_speed": 320,
            "pcie_replay_count_acc": self.replays,
            "xgmi_read_data_acc": [
                ABSENT if link in self.unlinked else 1000 * link + round(7 * t) for link in range(8)
            ],
            "xgmi_write_data_acc": [ABSENT if link in self.unlinked else 2 * link for link in range(8)],
            "current_gfxclk": [900 + 100 * xcc for xcc in range(self.xccs)],
            "current_uclk": 1300,
            **{name: cycles if name in self.ghosts else round(count) for name, count in spent.items()},
        }
        found |= dict.fromkeys(self.absent, ABSENT)
        return found

    def table(self, t: float) -> bytes:
        """Return the content of gpu_metrics."""
        values = self.values(t)
        if self.layout == APU:
            content = bytearray(b"\xff" * 264)
            struct.pack_into("<HBBH", content, 0, 264, 3, 0, 100 * values["temperature_hotspot"] + 49)
            struct.pack_into("<I", content, 112, 1000 * self.watts(t) + 7)
            struct.pack_into("<H", content, 174, 1234)
            return bytes(content)
        if self.layout == DESCRIBING:
            return self._described(values)
        kind = LAYOUTS.get(self.layout, LAYOUTS[1, 3, 120])
        content = kind.from_buffer_copy(b"\xff" * ctypes.sizeof(kind))
        struct.pack_into("<HBB", content, 0, self.layout[2], *self.layout[:2])
        for name, value in values.items():
            place = dict(kind._fields_).get(name)
            if place is not None:
                self._put(content, name, value, place)
        if hasattr(content, "xcp_stats"):
            setattr(content, "num_partition", 1)  # noqa: B010  (vulture takes it for unused)
            self._busy_by_xcc(content.xcp_stats[0], t)
        return bytes(content)

    def _busy_by_xcc(self, block: Any, t: float) -> None:
        for xcc in range(self.xccs):
            block.gfx_busy_inst[xcc] = self.instant(t)
            block.gfx_busy_acc[xcc] = self._acc(t)

    def _acc(self, t: float) -> int:
        """Return the accumulator of one part."""
        since = self.busy(self.restarted) if t >= self.restarted else 0.0
        return round((self.busy(t) - since) * self.hertz * self.unit)

    @staticmethod
    def _put(content: Any, name: str, value: Any, kind: Any) -> None:
        if isinstance(value, list):
            if hasattr(kind, "_length_"):
                for place, each in enumerate(value):
                    getattr(content, name)[place] = each
                return
            value = value[0]
        setattr(content, name, value & ONES[kind])

    def _described(self, values: dict[str, Any]) -> bytes:
        second = self.now
        values = values | {"temperature_vrsoc": 50, "mem_max_bandwidth": 5300, "system_clock_counter": 1}
        values |= {"gfxclk_lock_status": 0, "mem_activity_acc": 7, "firmware_timestamp": 3, "aid": [1, 2, 3]}
        values |= {"gfx_busy_inst": [self.instant(second)] * self.xccs, "gfx_busy_acc": [self._acc(second)] * self.xccs}
        content = b""
        for name, number, _ in ATTRIBUTES:
            kind = self.kinds[name]
            given = values[name] if isinstance(values[name], list) else [values[name]]
            bits = 8 * struct.calcsize("<" + _FORMS[kind])
            encoding = 9 << 24 | kind << 20 | number << 10 | len(given)
            packed = struct.pack(f"<{len(given)}{_FORMS[kind].upper()}", *(each & (1 << bits) - 1 for each in given))
            content += struct.pack("<Q", encoding) + packed
        return struct.pack("<HBBi", 8 + len(content), 1, 9, len(ATTRIBUTES)) + content

    now = 0.0

    def _write_static(self) -> None:
        card = self.root / f"sys/class/drm/card{self.number + 1}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(self.folder)
        (self.root / f"sys/class/drm/card{self.number + 1}-DP-1").mkdir()
        phantom = self.root / f"sys/devices/platform/amdgpu_xcp_{self.number}"
        phantom.mkdir(parents=True)
        (self.root / f"sys/class/drm/card{self.number + 31}").mkdir()
        (self.root / f"sys/class/drm/card{self.number + 31}/device").symlink_to(phantom)
        self.put("vendor", "0x1002")
        self.put("device", "0x74a1")
        if self.unique:
            self.put("unique_id", f"{self.unique:016x}")
        self.put("product_name", "AMD Instinct MI300X OAM" if self.number % 2 else "Instinct MI210")
        self.put("mem_info_vram_total", str(self.memory))
        self.put("power/runtime_status", "active")
        self.put("hwmon/hwmon5/power1_cap", "" if self.cap is None else str(self.cap))
        self.put("hwmon/hwmon5/temp2_crit", "100000")
        self.put("gpu_busy_percent", "42")
        self.put("pp_dpm_sclk", "S: 19Mhz *\n0: 500Mhz\n1: 2100Mhz\n")
        place = self.root / f"sys/class/kfd/kfd/topology/nodes/{self.node_id}"
        place.mkdir(parents=True)
        (place / "gpu_id").write_text(f"{self.gpu_id}\n")
        bus = int(self.address[5:7], 16)
        facts = {"simd_count": 1216, "simd_per_cu": 4, "domain": 0, "location_id": bus << 8, "unique_id": self.unique}
        facts |= {"gfx_target_version": 90402}
        (place / "properties").write_text("".join(f"{name} {value}\n" for name, value in facts.items()))

    def put(self, name: str, content: str | bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())

    def write(self, t: float) -> None:
        """Write the files as they are at a second."""
        self.now, fault = t, self.fault(t)
        aside = self.folder.with_name(f"{self.address}-aside")
        if (fault == "gone") != aside.exists():
            (self.folder.rename(aside) if fault == "gone" else aside.rename(self.folder))
        if fault == "gone":
            return
        content = self.table(t)
        torn = {
            "truncated": content[: self.dice.randrange(len(content))],
            "empty": b"",
            "other": content[:2] + b"\x01\x63",
        }
        self.put("gpu_metrics", torn.get(fault, content + b"\0" * self.dice.choice([0, 0, 100])))
        self.put("power/runtime_status", "suspended" if fault == "suspended" else "active")
        self.put("mem_info_vram_used", str(self.used(t)))
        if self.errors:
            counts = f"ue: {self.errors[1]}\nce: {self.errors[0]}"
            self.put("ras/umc_err_count", "Query currently inaccessible" if fault == "ras words" else counts)
            self.put("ras/aca_gfx", "ue: 0\nce: 1\nde: 4")
        for pid, size in self.uses.items():
            path = self.root / f"sys/class/kfd/kfd/proc/{pid}/vram_{self.gpu_id}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{size}\n")

    def used(self, t: float) -> int:
        return min(self.memory, round((1 << 28) + t * (1 << 20)))

    def refused(self, path: str, t: float) -> int:
        """Return the error that opening a file gives, 0 for none."""
        code = {"refused": errno.EPERM, "busy": errno.EBUSY}.get(self.fault(t), 0)
        return code if path.startswith(f"{self.folder}/gpu_metrics") else 0
