"""The numbers and bit masks of NVML by name: above this package there are only the names.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Mapping

from gpugauge.driver import codes

# nvmlReturn_t.
RETURN_CODES = {
    0: codes.SUCCESS,
    1: codes.UNINITIALIZED,
    2: codes.INVALID_ARGUMENT,
    3: codes.NOT_SUPPORTED,
    4: codes.NO_PERMISSION,
    5: "already_initialized",
    6: codes.NOT_FOUND,
    7: codes.INSUFFICIENT_SIZE,
    8: "insufficient_power",
    9: codes.DRIVER_NOT_LOADED,
    10: codes.TIMEOUT,
    11: "irq_issue",
    12: codes.LIBRARY_NOT_FOUND,
    13: codes.FUNCTION_NOT_FOUND,
    14: "corrupted_inforom",
    15: codes.GPU_IS_LOST,
    16: codes.RESET_REQUIRED,
    17: "operating_system",
    18: codes.LIBRARY_MISMATCH,
    19: "in_use",
    20: "memory",
    21: "no_data",
    23: "insufficient_resources",
    24: "freq_not_supported",
    25: codes.ARGUMENT_VERSION_MISMATCH,
    26: "deprecated",
    27: "not_ready",
    28: codes.GPU_NOT_FOUND,
    29: "invalid_state",
    30: "reset_type_not_supported",
    999: codes.UNKNOWN,
}

# The bits of nvmlClocksEventReasons: the reasons for which the clocks are below their maximum.
CLOCKS_EVENT_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}

# The bits of nvmlEventType.
EVENT_TYPES = {
    "ecc_single_bit": 0x1,
    "ecc_double_bit": 0x2,
    "xid": 0x8,
    "mig": 0x100,
    "gpu_unavailable": 0x4000,
    "recovery_action": 0x8000,
}


def named(mask: int, bits: Mapping[str, int]) -> list[str]:
    """Return the names of the bits that are set in a mask, without those that have no name."""
    return [name for name, bit in bits.items() if mask & bit]


def code_name(number: int) -> str:
    """Return the name of a return code, `code_N` for an unknown one; empty for success."""
    found = RETURN_CODES.get(number)
    return f"code_{number}" if found is None else found
