"""Field values: numbers with ids of their own, of which a GPU gives any number in one call.

Ids are those of nvml.h; where the driver's version changes an id, `field_values` chooses.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

from gpugauge.driver.codes import IMPLAUSIBLE, DriverError, Group
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.plausible import CELSIUS, COUNTER, FLAG, MILLIWATTS, MODE, Check

_ALL_LINKS = _NOT_AVAILABLE = 0xFFFFFFFF
_UNSIGNED_INT = 1
_LINKS = 18  # NVML_NVLINK_MAX_LINKS of what has them today
_KIB = 1024
_MEGABYTE = 1e6 / 2**20  # NVML's "MBps" of a link's speed is decimal: 26562 is 26.5625 GB/s

# From which driver on the ids of three throttle counters are what they are. In R570 and before, and again in today's
# header, 251 to 253 are settings of power smoothing; between 580.65 and 580.82 nothing is known.
_THROTTLE_251 = ((575, 0), (580, 65))
_THROTTLE_269 = (580, 82)


class FieldValue(NamedTuple):
    """One row: NVML's id and scope. `key` is the entry of a field that is a mapping. Of the rows of the same field and
    key the first that the GPU supports is used.
    """

    group: Group
    field: str
    check: Check
    id: int
    scope: int = 0
    key: str | None = None
    flag: bool = False
    factor: float = 1  # into the unit of the field's name


def _counters(group: Group, field: str, ids: dict[str, int], scope: int = 0) -> tuple[FieldValue, ...]:
    """The entries of a field that counts by kind."""
    return tuple(FieldValue(group, field, COUNTER, number, scope, key) for key, number in ids.items())


def field_values(driver_version: str | None) -> tuple[FieldValue, ...]:
    """Return the rows for a driver; without a version those that every driver understands."""
    return _ROWS + _counters("normal", "clocks_event_nanoseconds", _throttle_ids(_major_minor(driver_version)))


def _throttle_ids(version: tuple[int, int]) -> dict[str, int]:
    if _THROTTLE_251[0] <= version <= _THROTTLE_251[1]:
        first = 251
    elif version >= _THROTTLE_269:
        first = 269
    else:
        return {}
    names = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    return dict(zip(names, range(first, first + 3), strict=True))


def _major_minor(version: str | None) -> tuple[int, int]:
    """`580.82.07` is (580, 82); (0, 0) if there is nothing to compare."""
    parts = (version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(p.isdigit() for p in parts[:2]) else (0, 0)


_ROWS: tuple[FieldValue, ...] = (
    FieldValue("normal", "memory_temperature_celsius", CELSIUS, 82),
    FieldValue("normal", "power_instant_milliwatts", MILLIWATTS, 186),
    *_counters(
        "normal",
        "clocks_event_nanoseconds",
        {
            "sw_power_cap": 74,
            "thermal": 75,
            "sync_boost": 76,
            "board_limit": 77,
            "low_utilization": 78,
            "reliability": 79,
        },
    ),
    # NVLink 5 counts bytes; before it the counters are in KiB. A Blackwell GPU may know both.
    FieldValue("normal", "nvlink_transmitted_bytes", COUNTER, 202, _ALL_LINKS),
    FieldValue("normal", "nvlink_received_bytes", COUNTER, 204, _ALL_LINKS),
    FieldValue("normal", "nvlink_transmitted_bytes", COUNTER, 138, _ALL_LINKS, factor=_KIB),
    FieldValue("normal", "nvlink_received_bytes", COUNTER, 139, _ALL_LINKS, factor=_KIB),
    FieldValue("slow", "ecc_mode", FLAG, 1, flag=True),
    FieldValue("slow", "ecc_mode_pending", FLAG, 2, flag=True),
    *_counters(
        "slow",
        "ecc_errors",
        {"corrected_volatile": 3, "uncorrected_volatile": 4, "corrected_aggregate": 5, "uncorrected_aggregate": 6},
    ),
    *_counters("slow", "retired_pages", {"single_bit": 29, "double_bit": 30}),
    FieldValue("slow", "retired_pages_pending", FLAG, 31, flag=True),
    *_counters("slow", "remapped_rows", {"correctable": 142, "uncorrectable": 143}),
    FieldValue("slow", "remapped_rows_pending", FLAG, 144, flag=True),
    FieldValue("slow", "remapped_rows_failure", FLAG, 145, flag=True),
    FieldValue("slow", "recovery_action", MODE, 230),
    FieldValue("slow", "pcie_replays", COUNTER, 94),
    *_counters(
        "slow",
        "pcie_errors",
        {
            "correctable": 173,
            "naks_received": 174,
            "receiver": 175,
            "bad_tlp": 176,
            "naks_sent": 177,
            "bad_dllp": 178,
            "non_fatal": 179,
            "fatal": 180,
            "unsupported_request": 181,
            "lcrc": 182,
            "lane": 183,
        },
    ),
    # Totals over all links up to NVLink 4 ...
    *_counters(
        "slow", "nvlink_errors", {"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59, "ecc_data": 160}
    ),
    # ... and of NVLink 5.
    *_counters(
        "slow",
        "nvlink_errors",
        {
            "malformed_packet": 206,
            "buffer_overrun": 207,
            "receive": 208,
            "receive_remote": 209,
            "receive_general": 210,
            "link_integrity": 211,
            "transmit_discard": 212,
            "recovery_successful": 213,
            "recovery_failed": 214,
        },
        _ALL_LINKS,
    ),
    *(
        FieldValue("slow", "nvlink_speed_mib_per_second", COUNTER, 164, link, str(link), factor=_MEGABYTE)
        for link in range(_LINKS)
    ),
    # The same before R515: ids of their own for each link.
    *(
        FieldValue(
            "slow",
            "nvlink_speed_mib_per_second",
            COUNTER,
            (84 if link < 6 else 126) + link,
            key=str(link),
            factor=_MEGABYTE,
        )
        for link in range(12)
    ),
)

# How NVML's union holds the value, by NVML's value type.
_UNION = {0: "=d", 1: "=I4x", 2: "=Q", 3: "=Q", 4: "=q", 5: "=i4x", 6: "=H6x"}
_ANSWER = struct.Struct("=IIqqII8s")  # nvmlFieldValue_t: id, scope, time, latency, type, code, value


def decoded(value_type: int, union: bytes) -> int | float:
    """Return the number in NVML's union; -1 if it is what NVML writes into 32 bits when it has no answer."""
    value: int | float = struct.unpack(_UNION.get(value_type, "=Q"), union)[0]
    return -1 if value_type == _UNSIGNED_INT and value == _NOT_AVAILABLE else value


class Question:
    """Rows that are asked in one call, again and again."""

    def __init__(self, binding: Any, rows: Sequence[FieldValue]) -> None:
        self.rows = rows
        self._values = (binding.c_nvmlFieldValue_t * len(rows))()
        for value, row in zip(self._values, rows, strict=True):
            value.fieldId, value.scopeId = row.id, row.scope
        self._bytes = memoryview(self._values).cast("B")

    def ask(self, call: Caller, handle: Any) -> list[tuple[FieldValue, int, int | float]]:
        """Return each row with its NVML code and its value. Raises DriverError."""
        failed = call.code("nvmlDeviceGetFieldValues", handle, len(self.rows), byref(self._values))
        if failed:
            raise DriverError(failed, "nvmlDeviceGetFieldValues")
        answers = zip(self.rows, _ANSWER.iter_unpack(self._bytes), strict=True)
        return [(row, code, 0 if code else decoded(kind, value)) for row, (*_, kind, code, value) in answers]


def keep(row: FieldValue, value: int | float, found: dict[str, Any], errors: dict[str, int]) -> None:
    """Keep a value under its field's name if it can be true."""
    if not row.check(value):
        errors[row.field] = IMPLAUSIBLE
        return
    plain = bool(value) if row.flag else round(value * row.factor) if row.factor != 1 else value
    if row.key is None:
        found[row.field] = plain
    else:
        found.setdefault(row.field, {})[row.key] = plain
