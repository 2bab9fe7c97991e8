"""Codes, bit masks and names that the worker and the daemon share: the part of the boundary (api.py) that the worker
loads. This module does not import `dataclasses`, which costs a worker 2 MB together with `inspect`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

# Readings are grouped by the cost of their calls; docs/architecture.md has the interval of each group.
Group: TypeAlias = Literal["static", "fast", "samples", "profiling", "normal", "slow", "processes", "mig"]

# The codes of the boundary are NVML's return codes (nvmlReturn_t). The backend of another vendor maps its own to them.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 1, 2, 3, 6, 7
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 9, 10, 12, 13, 15, 16
LIBRARY_MISMATCH, ARGUMENT_VERSION_MISMATCH, GPU_NOT_FOUND, UNKNOWN = 18, 25, 28, 999
# Not NVML's: the call succeeded with a value that cannot be true; the worker itself failed; the calls of the GPU before
# this one took so long that it was not made.
IMPLAUSIBLE, WORKER_ERROR, TOO_SLOW = -1, -2, -3

# A GPU that has never answered otherwise lacks the reading: it is not a failure, and seldom tried again.
UNSUPPORTED = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})

RELEASED = "released"  # the reason of a driver that was released on request, and of its GPUs
# Reasons for which a GPU is down: with the driver as a whole, or because it returned no uuid.
DRIVER_DOWN, NO_UUID = "driver_down", "no_uuid"

# By the number of nvmlDeviceGpuRecoveryAction_t.
RECOVERY_ACTIONS = (
    *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)

CODE_NAMES = {
    IMPLAUSIBLE: "implausible_value",
    WORKER_ERROR: "worker_error",
    TOO_SLOW: "too_slow",
    UNINITIALIZED: "uninitialized",
    INVALID_ARGUMENT: "invalid_argument",
    NOT_SUPPORTED: "not_supported",
    4: "no_permission",
    5: "already_initialized",
    NOT_FOUND: "not_found",
    INSUFFICIENT_SIZE: "insufficient_size",
    8: "insufficient_power",
    DRIVER_NOT_LOADED: "driver_not_loaded",
    TIMEOUT: "timeout",
    11: "irq_issue",
    LIBRARY_NOT_FOUND: "library_not_found",
    FUNCTION_NOT_FOUND: "function_not_found",
    14: "corrupted_inforom",
    GPU_IS_LOST: "gpu_is_lost",
    RESET_REQUIRED: "reset_required",
    17: "operating_system",
    LIBRARY_MISMATCH: "library_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    23: "insufficient_resources",
    24: "freq_not_supported",
    ARGUMENT_VERSION_MISMATCH: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    GPU_NOT_FOUND: "gpu_not_found",
    29: "invalid_state",
    30: "reset_type_not_supported",
    UNKNOWN: "unknown",
}

# The bits of nvmlClocksEventReasons by name: the reasons for which the clocks are below their maximum.
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
ECC_SINGLE_BIT_EVENT, ECC_DOUBLE_BIT_EVENT, XID_EVENT, MIG_EVENT = 0x1, 0x2, 0x8, 0x100
GPU_UNAVAILABLE_EVENT, RECOVERY_ACTION_EVENT = 0x4000, 0x8000

# The engines that have sample rings, in the order of docs and dashboards.
ENGINES = ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")


def code_name(code: int) -> str:
    """Return the name of an NVML return code in lower case, `code_N` for an unknown one."""
    return CODE_NAMES.get(code, f"code_{code}")


class DriverError(Exception):
    """A driver call failed. `code` is the NVML return code, `call` the function or the field."""

    def __init__(self, code: int, call: str = "") -> None:
        super().__init__(f"{call or 'NVML'}: {code_name(code)}")
        self.code = code
        self.call = call


class DriverFacts(NamedTuple):
    """Facts of the driver as a whole, read when it is opened."""

    device_count: int
    driver_version: str | None = None
    cuda_driver_version: int | None = None  # 12040 is CUDA 12.4
    simulated: bool = False
