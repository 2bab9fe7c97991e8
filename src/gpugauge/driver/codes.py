"""What the driver's codes mean, and what it tells about itself: all that the worker needs to know of the boundary
(api.py). Nothing here loads `dataclasses`, which with `inspect` and its classes is 2 MB of a worker.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

# How often a group of calls is read, by what it costs (notes in docs/architecture.md).
Group: TypeAlias = Literal["static", "fast", "samples", "profiling", "normal", "slow", "processes", "mig"]

# The codes of the boundary are NVML's return codes; another vendor's backend maps its own to them.
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 0, 1, 2, 3, 6
INSUFFICIENT_SIZE, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 7, 10, 13, 15, 999
# By what they mean for us. https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
LIFECYCLE = frozenset({1, 9, 12, 18, 28})  # uninitialized, no driver, no library, version mismatch, GPU not found
DEVICE_GONE = frozenset({15, 16})  # lost, reset required
UNSUPPORTED = frozenset({3, 13, 25})  # not supported, no such symbol, argument version mismatch: final for this driver
RELEASED = "released"  # as the reason of a driver that was given back on request, and of its GPUs
IMPLAUSIBLE = -1  # ours, not NVML's: the call succeeded with a value that cannot be true

CODE_NAMES = {
    IMPLAUSIBLE: "implausible_value",
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    5: "already_initialized",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "library_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    23: "insufficient_resources",
    24: "freq_not_supported",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    30: "reset_type_not_supported",
    999: "unknown",
}


def code_name(code: int) -> str:
    """Return the NVML return code's name in lower case, `code_N` for one that this release does not know."""
    return CODE_NAMES.get(code, f"code_{code}")


class DriverError(Exception):
    """A driver call failed; `code` is the NVML return code, `call` the function or field that asked."""

    def __init__(self, code: int, call: str = "") -> None:
        super().__init__(f"{call or 'NVML'}: {code_name(code)}")
        self.code = code
        self.call = call


# The engines that have sample rings, in the order of docs and dashboards.
ENGINES = ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")


class DriverFacts(NamedTuple):
    """What init tells about the driver as a whole."""

    device_count: int
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_driver_version: int | None = None  # 12040 is CUDA 12.4
    simulated: bool = False
