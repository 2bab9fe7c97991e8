"""Field values: numbers with an id (NVML_FI_* in nvml.h) by the field that they fill, many in one call."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from ctypes import byref
from typing import Any, NamedTuple

from gpugauge.driver.codes import RECOVERY_ACTIONS, Group
from gpugauge.driver.nvidia import plausible as valid
from gpugauge.driver.nvidia.caller import Caller, code_name
from gpugauge.driver.nvidia.plausible import MAX_LINKS, MEGABYTES_PER_SECOND, NOT_AVAILABLE, Check

_FUNCTION = "nvmlDeviceGetFieldValues"
UNSIGNED_INT = 1  # of nvmlValueType_t
_ALL_LINKS = 0xFFFFFFFF  # as the scope
_KIB = 1024

# The drivers in which 251 to 253, and 269 to 271, are the ids of three throttle counters. Up to R570, and in current
# headers, 251 to 253 are settings of power smoothing. Nothing is known about drivers between 580.65 and 580.82.
_THROTTLE_251 = ((575, 0), (580, 65))
_THROTTLE_269 = (580, 82)


class FieldValue(NamedTuple):
    """One row: the id and the scope of a value, and the field that it fills; `key` is the entry of a field that is a
    mapping, `link` the NVLink of a value of one link. Of the rows with the same field and key, the first one that the
    GPU supports is used.
    """

    group: Group
    field: str
    check: Check
    id: int
    scope: int = 0
    key: str | None = None
    flag: bool = False
    factor: int = 1  # to the unit of the field
    link: int | None = None
    names: Sequence[str] = ()  # of the numbers, in place of these


def _counters(group: Group, field: str, keys: Iterable[tuple[int, str]], scope: int = 0) -> tuple[FieldValue, ...]:
    """Return the rows of a field that is a mapping of counters, by their ids and keys."""
    return tuple(FieldValue(group, field, valid.COUNTER, number, scope, key) for number, key in keys)


def field_values(driver_version: str | None) -> tuple[FieldValue, ...]:
    """Return the rows for a driver version; without one, those with the same meaning in every driver."""
    return FIELD_VALUES + _counters("normal", "clocks_event_nanoseconds", _throttle_ids(_major_minor(driver_version)))


def _throttle_ids(version: tuple[int, int]) -> Iterable[tuple[int, str]]:
    if _THROTTLE_251[0] <= version <= _THROTTLE_251[1]:
        first = 251
    elif version >= _THROTTLE_269:
        first = 269
    else:
        return ()
    return enumerate(("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"), first)


def _major_minor(version: str | None) -> tuple[int, int]:
    """Return (580, 82) for `580.82.07`; (0, 0) for None and for other text."""
    parts = (version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(p.isdigit() for p in parts[:2]) else (0, 0)


# The keys of counters, in the order of their ids.
_PCIE_ERRORS = (
    *("correctable", "naks_received", "receiver", "bad_tlp", "naks_sent", "bad_dllp"),
    *("non_fatal", "fatal", "unsupported_request", "lcrc", "lane"),
)
_NVLINK_ERRORS = ((38, "crc_flit"), (45, "crc_data"), (52, "replay"), (59, "recovery"), (160, "ecc_data"))
_NVLINK_5_ERRORS = (
    *("malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general"),
    *("link_integrity", "transmit_discard", "recovery_successful", "recovery_failed"),
)
_OF_LINK = {161: "replay", 162: "recovery", 206: "malformed_packet", 207: "buffer_overrun", 214: "recovery_failed"}
_OF_OLD_LINK = {"replay": (46, 108), "recovery": (53, 114), "ecc_data": (148, 154)}  # ids of the links 0 and 6
LINK_ERRORS = "nvlink_link_errors"

FIELD_VALUES: tuple[FieldValue, ...] = (
    FieldValue("normal", "memory_temperature_celsius", valid.CELSIUS, 82),
    FieldValue("normal", "power_instant_milliwatts", valid.MILLIWATTS, 186),
    *_counters(
        "normal",
        "clocks_event_nanoseconds",
        enumerate(("sw_power_cap", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"), 74),
    ),
    # NVLink 5 counts bytes, NVLink 4 and older KiB. A Blackwell GPU may support both.
    FieldValue("normal", "nvlink_transmitted_bytes", valid.COUNTER, 202, _ALL_LINKS),
    FieldValue("normal", "nvlink_received_bytes", valid.COUNTER, 204, _ALL_LINKS),
    FieldValue("normal", "nvlink_transmitted_bytes", valid.COUNTER, 138, _ALL_LINKS, factor=_KIB),
    FieldValue("normal", "nvlink_received_bytes", valid.COUNTER, 139, _ALL_LINKS, factor=_KIB),
    FieldValue("slow", "ecc_mode", valid.FLAG, 1, flag=True),
    FieldValue("slow", "ecc_mode_pending", valid.FLAG, 2, flag=True),
    *_counters(
        "slow",
        "ecc_errors",
        enumerate(("corrected_volatile", "uncorrected_volatile", "corrected_aggregate", "uncorrected_aggregate"), 3),
    ),
    FieldValue("slow", "retired_pages", valid.PAGES, 29, key="single_bit"),
    FieldValue("slow", "retired_pages", valid.PAGES, 30, key="double_bit"),
    FieldValue("slow", "retired_pages_pending", valid.FLAG, 31, flag=True),
    FieldValue("slow", "remapped_rows", valid.ROWS, 142, key="correctable"),
    FieldValue("slow", "remapped_rows", valid.ROWS, 143, key="uncorrectable"),
    FieldValue("slow", "remapped_rows_pending", valid.FLAG, 144, flag=True),
    FieldValue("slow", "remapped_rows_failure", valid.FLAG, 145, flag=True),
    FieldValue("slow", "recovery_action", valid.MODE, 230, names=RECOVERY_ACTIONS),
    FieldValue("slow", "pcie_replays", valid.COUNTER, 94),
    *_counters("slow", "pcie_errors", enumerate(_PCIE_ERRORS, 173)),
    # Totals over all links, up to NVLink 4 …
    *_counters("slow", "nvlink_errors", _NVLINK_ERRORS),
    # … the same by link, where there are no totals: their sum …
    *(
        FieldValue("slow", "nvlink_errors", valid.COUNTER, number, link, key, link=link)
        for number, key in ((161, "replay"), (162, "recovery"), (163, "crc_flit"))
        for link in range(MAX_LINKS)
    ),
    # … and of NVLink 5. Field 215 is the sum of the recoveries that succeeded and that failed.
    *_counters("slow", "nvlink_errors", enumerate(_NVLINK_5_ERRORS, 206), _ALL_LINKS),
    *(
        FieldValue("slow", "nvlink_speed_megabytes_per_second", MEGABYTES_PER_SECOND, 164, link, str(link), link=link)
        for link in range(MAX_LINKS)
    ),
    # The same before R515, with an id for each link.
    *(
        FieldValue(
            "slow", "nvlink_speed_megabytes_per_second", MEGABYTES_PER_SECOND, first + link, key=str(link), link=link
        )
        for first, links in ((84, range(6)), (126, range(6, 12)))
        for link in links
    ),
    # The links with errors that should not occur; up to NVLink 3 each has ids of its own.
    *(
        FieldValue("links", LINK_ERRORS, valid.COUNTER, number, link, key, link=link)
        for number, key in _OF_LINK.items()
        for link in range(MAX_LINKS)
    ),
    *(
        FieldValue("links", LINK_ERRORS, valid.COUNTER, ids[link // 6] + link % 6, key=key, link=link)
        for key, ids in _OF_OLD_LINK.items()
        for link in range(12)
    ),
)
RARE = frozenset(row.key for row in FIELD_VALUES if row.group == "links")

# The format of the value in nvmlValue_t, by nvmlValueType_t.
_UNION = {0: "=d", 1: "=I4x", 2: "=Q", 3: "=Q", 4: "=q", 5: "=i4x", 6: "=H6x"}
_ANSWER = struct.Struct("=IIqqII8s")  # nvmlFieldValue_t: id, scope, time, latency, type, code, value


def decoded(value_type: int, union: bytes) -> int | float:
    """Return the number in an nvmlValue_t; -1 for 32 bits without an answer."""
    value: int | float = struct.unpack(_UNION.get(value_type, "=Q"), union)[0]
    return -1 if value_type == UNSIGNED_INT and value == NOT_AVAILABLE else value


class FieldValueRequest:
    """Rows that are read with one call; the request is reused. Raises DriverError."""

    def __init__(self, call: Caller, rows: Sequence[FieldValue]) -> None:
        self.rows = rows
        self._values = (call.bound("c_nvmlFieldValue_t", _FUNCTION) * len(rows))()
        for value, row in zip(self._values, rows, strict=True):
            value.fieldId, value.scopeId = row.id, row.scope
        self._bytes = memoryview(self._values).cast("B")

    def read(self, call: Caller, handle: Any) -> list[tuple[FieldValue, str, int | float]]:
        """Return each row with its code and its value. Raises DriverError."""
        call.direct(_FUNCTION, handle, len(self.rows), byref(self._values))
        answers = zip(self.rows, _ANSWER.iter_unpack(self._bytes), strict=True)
        return [
            (row, code_name(code) if code else "", 0 if code else decoded(kind, value))
            for row, (*_, kind, code, value) in answers
        ]


def keep(row: FieldValue, value: int | float, found: dict[str, Any]) -> None:
    """Add a value to `found` under the name of its field."""
    plain = bool(value) if row.flag else value * row.factor
    if row.names:
        found[row.field] = row.names[int(value)] if value < len(row.names) else f"{row.field}_{value:.0f}"
    elif row.key is None:
        found[row.field] = plain
    elif row.field == LINK_ERRORS:
        found.setdefault(row.field, {}).setdefault(str(row.link), {})[row.key] = plain
    else:
        entries = found.setdefault(row.field, {})
        entries[row.key] = plain + (entries.get(row.key, 0) if row.link is not None else 0)
