"""The file `gpu_metrics`: structures of kgd_pp_interface.h by the revisions and the size in its header."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from gpugauge.driver.codes import INSUFFICIENT_SIZE, DriverError

_HEADER = struct.Struct("<HBB")  # size, format revision, content revision
_SELF_DESCRIBING = (1, 9)
_ATTRIBUTE = struct.Struct("<Q")
_TYPES = "BbHhIiQq"  # by number
# By id of an attribute. Numbers from 49 on have two meanings.
_IDS = {0: "temperature", 1: "memory_temperature", 3: "watts", 4: "gfx", 5: "memory_activity", 7: "energy"}
_IDS |= {9: "counter", 10: "prochot", 11: "ppt", 12: "socket_thermal", 13: "vr_thermal", 14: "hbm_thermal"}
_IDS |= {16: "lanes", 17: "speed", 20: "gfx_acc", 25: "replays", 29: "xgmi_read", 30: "xgmi_written"}
_IDS |= {33: "gfxclk", 37: "uclk", 40: "xcc_busy", 43: "xcc_acc"}
RESIDENCIES = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")

# Name and type of the fields, in the order of the offsets below; the residencies follow each other.
_FIELDS = (
    *(("temperature", "H"), ("memory_temperature", "H"), ("watts", "H"), ("gfx", "H"), ("memory_activity", "H")),
    *(("energy", "Q"), ("counter", "I"), ("residencies", "5I"), ("lanes", "H"), ("speed", "H"), ("gfx_acc", "I")),
    *(("replays", "Q"), ("xgmi_read", "8Q"), ("xgmi_written", "8Q"), ("gfxclk", "8H"), ("uclk", "H")),
)
_NONE = -1
_OFFSETS = {
    (1, 3, 120): (6, 8, 22, 16, 18, 24, _NONE, _NONE, 74, 76, 80, _NONE, _NONE, _NONE, 54, 58),
    (1, 4, 288): (4, 6, 10, 12, 14, 24, _NONE, _NONE, 48, 50, 56, 88, 104, 168, 240, 280),
    (1, 5, 360): (4, 6, 10, 12, 14, 88, _NONE, _NONE, 112, 114, 120, 152, 176, 240, 312, 352),
    (1, 6, 384): (4, 6, 10, 12, 14, 88, 104, 108, 136, 138, 144, 176, 200, 264, 336, 376),
    (1, 6, 1664): (4, 6, 10, 12, 14, 16, 32, 36, 60, 62, 68, 104, 128, 192, 264, 304),
    (1, 7, 2208): (4, 6, 10, 12, 14, 24, 40, 44, 68, 70, 76, 112, 136, 200, 296, 336),
    (1, 8, 3872): (4, 6, 10, 12, 14, 24, 40, 44, 68, 70, 76, 112, 136, 200, 296, 336),
}
# Partitions: their number, the first one, the bytes of each, and its accumulators; the instantaneous values come first.
_PARTITIONS = {
    (1, 6, 1664): (306, 312, 168, 104),
    (1, 7, 2208): (338, 344, 232, 104),
    (1, 8, 3872): (338, 344, 440, 120),
}
_XCCS, _MAX_PARTITIONS = 8, 8
# Of APUs, in centi-degrees and milliwatts. The unit of their load depends on the firmware.
_APU = {(3, 0, 264): {"centidegrees": (4, "H"), "milliwatts": (112, "I"), "gfxclk": (174, "H")}}


def _layouts() -> Iterator[tuple[tuple[int, int, int], dict[str, tuple[int, str]]]]:
    for header, offsets in _OFFSETS.items():
        layout = {name: (at, kind) for (name, kind), at in zip(_FIELDS, offsets, strict=True) if at != _NONE}
        if header == (1, 3, 120):
            layout["gfxclk"] = layout["gfxclk"][0], "H"
        yield header, layout


_LAYOUTS = dict(_layouts()) | _APU


class Table(NamedTuple):
    """The values of a reading by name, without those that are not supported, and the bits of each."""

    header: tuple[int, int, int]  # format and content revision, size
    known: bool  # whether the layout is
    values: dict[str, tuple[int, ...]]
    bits: dict[str, int]

    def one(self, name: str) -> int | None:
        """Return a value, the largest of several."""
        found = self.values.get(name)
        return max(found) if found else None

    @property
    def of_apu(self) -> bool:
        """Whether it is that of an APU, whose memory is a part of the machine's."""
        return self.header[0] in {2, 3}


def decoded(data: bytes) -> Table:
    """Return the values of a file. Raises DriverError if it is shorter than it says."""
    if len(data) < _HEADER.size:
        raise DriverError(INSUFFICIENT_SIZE, "gpu_metrics")
    size, *revisions = _HEADER.unpack_from(data)
    header = (revisions[0], revisions[1], size)
    table = Table(header, True, {}, {})
    if header[:2] == _SELF_DESCRIBING:
        _describe(data, table)
        return table
    layout = _LAYOUTS.get(header)
    if layout is None:
        return table._replace(known=False)
    if len(data) < size:
        raise DriverError(INSUFFICIENT_SIZE, "gpu_metrics")
    for name, (offset, kind) in layout.items():
        if name == "residencies":
            for place, residency in enumerate(RESIDENCIES):
                _set(table, residency, kind[-1], data, offset + 4 * place)
        else:
            _set(table, name, kind, data, offset)
    if header in _PARTITIONS:
        number, first, stride, accumulators = _PARTITIONS[header]
        (count,) = struct.unpack_from("<H", data, number)
        for place in range(count if count <= _MAX_PARTITIONS else 0):
            _set(table, "xcc_busy", f"{_XCCS}I", data, first + place * stride)
            _set(table, "xcc_acc", f"{_XCCS}Q", data, first + place * stride + accumulators)
    return table


def _describe(data: bytes, table: Table) -> None:
    """Set the values of a structure that describes itself. Raises DriverError if it is shorter than it says."""
    if len(data) < 8:
        raise DriverError(INSUFFICIENT_SIZE, "gpu_metrics")
    (count,) = struct.unpack_from("<i", data, _HEADER.size)
    offset = 8
    for _ in range(count):
        if len(data) < offset + _ATTRIBUTE.size:
            raise DriverError(INSUFFICIENT_SIZE, "gpu_metrics")
        (encoding,) = _ATTRIBUTE.unpack_from(data, offset)
        number, kind, length = encoding >> 10 & 0x3FF, encoding >> 20 & 0xF, encoding & 0x3FF
        if kind >= len(_TYPES):
            return  # its size is not known, and so not where the next one is
        form = f"{length}{_TYPES[kind]}"
        offset += _ATTRIBUTE.size
        if len(data) < offset + struct.calcsize("<" + form):
            raise DriverError(INSUFFICIENT_SIZE, "gpu_metrics")
        if number in _IDS:
            _set(table, _IDS[number], form, data, offset)
        offset += struct.calcsize("<" + form)


def _set(table: Table, name: str, kind: str, data: bytes, offset: int) -> None:
    """Add the values of a field, without those of which all bits are set: these are not supported."""
    bits = 8 * struct.calcsize("<" + kind[-1])
    nothing = -1 if kind[-1].islower() else (1 << bits) - 1
    found = tuple(value for value in struct.unpack_from("<" + kind, data, offset) if value != nothing)
    if found:
        table.values[name] = (*table.values.get(name, ()), *found)
        table.bits[name] = bits
