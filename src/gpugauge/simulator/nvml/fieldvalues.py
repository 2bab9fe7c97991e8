"""The field values of a simulated GPU by id (NVML_FI_* in nvml.h)."""
# ruff: noqa: SLF001  (`_obj` is the interface of ctypes)

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from gpugauge.simulator.device.device import Device
from gpugauge.simulator.device.rings import UPTIME
from gpugauge.simulator.device.world import Generation, World
from gpugauge.simulator.nvml.answers import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    UNSIGNED_INT,
    UNSIGNED_LONG_LONG,
    plain,
)

# nvmlFieldValue_t: id, scope, time, latency, type, code, value. Access to the structures of the binding is slower.
_VALUE = struct.Struct("=IIQqIIQ")
_BITS = (1 << 64) - 1  # numbers of a scenario lose higher bits
_ALL_LINKS = 0xFFFFFFFF
_POWER_SMOOTHING = range(251, 269)  # settings; in some drivers, three of these ids are throttle counters

# Returns the value for (GPU, second, scope); None means not supported.
_Answer: TypeAlias = Callable[[Device, float, int], int | None]


def field_values(world: World, device: Device, t: float, count: Any, values: Any) -> int:
    """Implement nvmlDeviceGetFieldValues: each value has its own return code, and the Unix time in microseconds."""
    array, stamp = values._obj, round(1e6 * (world.start_unix + t)) & _BITS
    for offset in range(0, plain(count) * _VALUE.size, _VALUE.size):
        number, scope, *_ = _VALUE.unpack_from(array, offset)
        code, value_type, answer = _answer(world.generation, device, t, number, scope)
        _VALUE.pack_into(array, offset, number, scope, stamp, 0, value_type, code, answer & _BITS)
    return SUCCESS


def _answer(generation: Generation, device: Device, t: float, number: int, scope: int) -> tuple[int, int, int]:
    if not generation.has_field(number):
        return INVALID_ARGUMENT, 0, 0
    reason = generation.throttle_reason(number)
    if reason is not None:
        return SUCCESS, UNSIGNED_LONG_LONG, _throttled(device, t, reason)
    known = FIELDS.get(number)
    if known is None or number in device.unsupported_fields:
        return NOT_SUPPORTED, 0, 0
    value_type, answer = known
    value = answer(device, t, scope)
    return (NOT_SUPPORTED, 0, 0) if value is None else (SUCCESS, value_type, value)


def _throttled(device: Device, t: float, reason: str) -> int:
    return round(device.since_reset(lambda s: 1e9 * device.health.throttled_seconds(reason, s), t))


def _throttle(reason: str) -> _Answer:
    return lambda device, t, _scope: _throttled(device, t, reason)


def _volatile_ecc(kind: str) -> _Answer:
    """Return the answer of an ECC counter that starts when the driver is loaded, and again at a reset."""
    return lambda device, t, _scope: round(device.since_reset(lambda s: device.health.ecc_errors(kind, 0.0, s), t))


def _low_utilization(device: Device, t: float, _scope: int) -> int:
    return round(device.since_reset(lambda s: 1e9 * (UPTIME + device.idle(s)), t))


def _nvlink_bytes(unit: int) -> _Answer:
    def answer(device: Device, t: float, scope: int) -> int | None:
        total, links = device.nvlink_bytes(t), device.figures["nvlinks"]
        return (total if scope == _ALL_LINKS else total // links) // unit if links else None

    return answer


def _nvlink_speed(device: Device, t: float, link: int) -> int | None:
    """Return the speed of a link: 0 while it is down, None where the driver does not answer for it."""
    up = device.nvlink_up(link, t)
    if up is None or device.health.nvlink_silent(link, t):
        return None
    return int(device.figures["nvlink_megabytes_per_second"]) if up else 0


def _counter(kind: str | None, source: str) -> _Answer:
    """Return the answer of a counter of the scenario, which is constant until a reset."""
    return lambda device, t, _scope: round(device.since_reset(lambda s: device.health.counted(source, s, kind), t))


def _nvlink_errors(kind: str, only: int | None = None) -> _Answer:
    """Return the answer of a counter of each link, or of all, by scope; `only` is the link of an id of its own."""
    counter = _counter(kind, "nvlink_errors")

    def answer(device: Device, t: float, scope: int) -> int | None:
        link = scope if only is None else only
        if link == _ALL_LINKS:
            return counter(device, t, link)
        if device.nvlink_up(link, t) is None or device.health.nvlink_silent(link, t):
            return None
        return device.health.of_link(counter(device, t, link) or 0, link)

    return answer


_PCIE_ERRORS = (  # in the order of their ids
    *("correctable", "naks_received", "receiver", "bad_tlp", "naks_sent", "bad_dllp"),
    *("non_fatal", "fatal", "unsupported_request", "lcrc", "lane"),
)
# Value type and answer by id. An id is required here for each row of driver/nvidia/fieldvalues.py.
FIELDS: dict[int, tuple[int, _Answer]] = {
    **{number: (UNSIGNED_INT, lambda _device, _t, _scope: 1) for number in (1, 2)},  # ECC mode now and pending
    3: (UNSIGNED_LONG_LONG, _volatile_ecc("corrected")),
    4: (UNSIGNED_LONG_LONG, _volatile_ecc("uncorrected")),
    5: (UNSIGNED_LONG_LONG, lambda device, t, _scope: device.health.ecc_errors("corrected", -UPTIME, t)),
    6: (UNSIGNED_LONG_LONG, lambda device, t, _scope: device.health.ecc_errors("uncorrected", -UPTIME, t)),
    29: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("retired_pages", "single_bit", t)),
    30: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("retired_pages", "double_bit", t)),
    31: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("retired_pages", "pending", t)),
    **{
        number: (UNSIGNED_LONG_LONG, _counter(kind, "nvlink_errors"))
        for number, kind in ((38, "crc_flit"), (45, "crc_data"), (52, "replay"), (59, "recovery"), (160, "ecc_data"))
    },
    **{
        ids[link // 6] + link % 6: (UNSIGNED_LONG_LONG, _nvlink_errors(kind, link))
        for kind, ids in (("replay", (46, 108)), ("recovery", (53, 114)), ("ecc_data", (148, 154)))
        for link in range(12)
    },
    **{
        number: (UNSIGNED_LONG_LONG, _nvlink_errors(kind))
        for number, kind in (
            *((206, "malformed_packet"), (207, "buffer_overrun"), (208, "receive"), (209, "receive_remote")),
            *((210, "receive_general"), (211, "link_integrity"), (212, "transmit_discard")),
            *((213, "recovery_successful"), (214, "recovery_failed")),
        )
    },
    74: (UNSIGNED_LONG_LONG, _throttle("sw_power_cap")),
    75: (UNSIGNED_LONG_LONG, _throttle("hw_thermal_slowdown")),
    76: (UNSIGNED_LONG_LONG, _throttle("sync_boost")),
    77: (UNSIGNED_LONG_LONG, _throttle("board_limit")),
    78: (UNSIGNED_LONG_LONG, _low_utilization),
    79: (UNSIGNED_LONG_LONG, _throttle("reliability")),
    82: (UNSIGNED_INT, lambda device, t, _scope: device.temperature(t) + 6),
    **{
        number: (UNSIGNED_INT, lambda device, t, _scope, link=link: _nvlink_speed(device, t, link))  # type: ignore[misc] # the default is ours
        for link, number in enumerate((*range(84, 90), *range(132, 138)))
    },
    91: (UNSIGNED_INT, lambda device, _t, _scope: device.figures["nvlinks"]),
    94: (UNSIGNED_INT, _counter(None, "pcie_replays")),
    **dict.fromkeys((138, 139), (UNSIGNED_LONG_LONG, _nvlink_bytes(1024))),
    142: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("remapped_rows", "correctable", t)),
    143: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("remapped_rows", "uncorrectable", t)),
    144: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("remapped_rows", "pending", t)),
    145: (UNSIGNED_INT, lambda device, t, _scope: device.health.rows("remapped_rows", "failure", t)),
    **{
        number: (UNSIGNED_LONG_LONG, _nvlink_errors(kind))
        for number, kind in ((161, "replay"), (162, "recovery"), (163, "crc_flit"))
    },
    164: (UNSIGNED_INT, _nvlink_speed),
    **{number: (UNSIGNED_INT, _counter(kind, "pcie_errors")) for number, kind in enumerate(_PCIE_ERRORS, 173)},
    186: (UNSIGNED_INT, lambda device, t, _scope: device.power_now(t)),
    **dict.fromkeys((202, 204), (UNSIGNED_LONG_LONG, _nvlink_bytes(1))),
    230: (UNSIGNED_INT, lambda device, t, _scope: device.health.recovery_action(t)),
    # Wrong nanoseconds for a reader that takes these ids for throttle counters.
    **{number: (UNSIGNED_INT, lambda _device, _t, _scope: 1) for number in _POWER_SMOOTHING},
}
