"""Names that worker and daemon share. Does not import `dataclasses`, which costs a worker 2 MB with `inspect`."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

# Readings are grouped by the cost of their calls; docs/architecture.md has the interval of each group.
Group: TypeAlias = Literal["static", "fast", "samples", "profiling", "normal", "slow", "links", "processes", "mig"]

# The codes of calls. The backend of a vendor gives the codes of its library these names, and `code_N` to others.
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED = "", "uninitialized", "invalid_argument", "not_supported"
NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = "no_permission", "not_found", "insufficient_size"
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND = "driver_not_loaded", "timeout", "library_not_found"
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = "function_not_found", "gpu_is_lost", "reset_required"
LIBRARY_MISMATCH, ARGUMENT_VERSION_MISMATCH = "library_mismatch", "argument_version_mismatch"
GPU_NOT_FOUND, UNKNOWN, IN_USE, NOT_READY = "gpu_not_found", "unknown", "in_use", "not_ready"
# The call returned what cannot be true; the worker itself failed; the calls before this one left no time for it.
IMPLAUSIBLE, WORKER_ERROR, TOO_SLOW = "implausible_value", "worker_error", "too_slow"
CODES = frozenset(
    {
        *(UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE),
        *(DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED),
        *(LIBRARY_MISMATCH, ARGUMENT_VERSION_MISMATCH, GPU_NOT_FOUND, UNKNOWN, IMPLAUSIBLE, WORKER_ERROR, TOO_SLOW),
        *("already_initialized", "insufficient_power", "irq_issue", "corrupted_inforom", "operating_system", IN_USE),
        *("memory", "no_data", "insufficient_resources", "freq_not_supported", "deprecated", NOT_READY),
        *("invalid_state", "reset_type_not_supported"),
    }
)

# A GPU that has never answered otherwise lacks the reading: it is not a failure, and seldom tried again.
UNSUPPORTED = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})

RELEASED = "released"  # the reason of a driver that was released on request, and of its GPUs
# Reasons for which a GPU is down: with the driver as a whole, or because it returned no uuid.
DRIVER_DOWN, NO_UUID = "driver_down", "no_uuid"

# What a driver can require after an error. NVML numbers the actions and the modes in this order.
RECOVERY_ACTIONS = (
    *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")

# The engines that have sample rings, in the order of docs and dashboards.
ENGINES = ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")


def gfx_target(version: int) -> str:
    """Return the architecture as in builds for ROCm, such as gfx942, by its version in KFD; "" for 0, a CPU."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


class DriverError(Exception):
    """A driver call failed. `code` is its name, `call` the function or the field."""

    def __init__(self, code: str, call: str = "") -> None:
        super().__init__(f"{call or 'driver'}: {code}")
        self.code = code
        self.call = call


class DriverFacts(NamedTuple):
    """Facts of the driver as a whole, read when it is opened."""

    device_count: int
    driver_version: str | None = None
    cuda_driver_version: int | None = None  # 12040 is CUDA 12.4
    simulated: bool = False
