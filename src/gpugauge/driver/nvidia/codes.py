"""The numbers and bit masks of NVML by name: above this package there are only the names.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Mapping

from gpugauge.driver import codes

# nvmlReturn_t; 22 is not used.
RETURN_CODES = dict(
    enumerate(
        (
            *(codes.SUCCESS, codes.UNINITIALIZED, codes.INVALID_ARGUMENT, codes.NOT_SUPPORTED, codes.NO_PERMISSION),
            *("already_initialized", codes.NOT_FOUND, codes.INSUFFICIENT_SIZE, "insufficient_power"),
            *(codes.DRIVER_NOT_LOADED, codes.TIMEOUT, "irq_issue", codes.LIBRARY_NOT_FOUND, codes.FUNCTION_NOT_FOUND),
            *("corrupted_inforom", codes.GPU_IS_LOST, codes.RESET_REQUIRED, "operating_system"),
            *(codes.LIBRARY_MISMATCH, "in_use", "memory", "no_data", "code_22", "insufficient_resources"),
            *("freq_not_supported", codes.ARGUMENT_VERSION_MISMATCH, "deprecated", "not_ready", codes.GPU_NOT_FOUND),
            *("invalid_state", "reset_type_not_supported"),
        )
    )
) | {999: codes.UNKNOWN}

# The bits of nvmlClocksEventReasons: the reasons for which the clocks are below their maximum.
_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"),
)
CLOCKS_EVENT_REASONS = {name: 1 << place for place, name in enumerate(_REASONS)}
# The bits of nvmlEventType.
EVENT_TYPES = {"ecc_single_bit": 0x1, "ecc_double_bit": 0x2, "xid": 0x8, "mig": 0x100}
EVENT_TYPES |= {"gpu_unavailable": 0x4000, "recovery_action": 0x8000}


def named(mask: int, bits: Mapping[str, int]) -> list[str]:
    """Return the names of the bits that are set in a mask, without those that have no name."""
    return [name for name, bit in bits.items() if mask & bit]


def code_name(number: int) -> str:
    """Return the name of a return code, `code_N` for an unknown one; empty for success."""
    return RETURN_CODES.get(number, f"code_{number}")
