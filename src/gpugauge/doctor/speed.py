"""Short measurements on the first GPU, which distinguish a slow GPU from a badly used one."""

from __future__ import annotations

from typing import Any

from gpugauge.doctor.case import Case
from gpugauge.doctor.condition import computing
from gpugauge.doctor.finding import Finding, failure, ok, warning
from gpugauge.status.words import digits, factor

_BUSY_PERCENT = 10
_TENSOR_CORE_CAPABILITY = (7, 0)
_MIN_HALF_PRECISION_GAIN = 1.2  # rate of 16-bit types relative to 32-bit, with tensor cores
_MIN_LINK_RATIO = 0.5
_MIN_STEP_GAIN = 2.0
# Bytes per second of one lane by PCIe generation, without the line code.
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}


def obstacle(case: Case) -> str:
    """Return why nothing is measured, or ""."""
    if not case.options.timed:
        return "switched off (--no-timed)"
    if case.options.pid is not None:
        return "not available with a process"
    if case.simulated:
        return "the GPUs are simulated"
    facts = case.torch.facts
    if not (facts.get("available") or facts.get("mps_available")):
        return "torch has no usable GPU"
    device = case.device_of_torch()
    candidates = [device] if device else case.driver.up
    busy = [
        d.reading.index for d in candidates if computing(d) or (d.reading.utilization_percent or 0) >= _BUSY_PERCENT
    ]
    if busy and not case.options.force:
        return f"GPU {busy[0]} is in use; --force measures anyway and slows the other process down"
    return ""


def matrix_product(case: Case) -> Finding:
    """Check the rate of matrix multiplication in each dtype."""
    title = "Matrix product"
    rates = case.timings.facts.get("matmul")
    if not rates:
        return _unmeasured(case, title, "matmul")
    found = ", ".join(f"{name} {digits(rate / 1e12, 3)}" for name, rate in rates.items()) + " TFLOP/s"
    full, half = rates.get("float32"), max(rates.get("float16", 0.0), rates.get("bfloat16", 0.0))
    capability = (case.torch.facts.get("devices") or [{}])[0].get("capability")
    has_tensor_cores = case.build == "cuda" and capability is not None and tuple(capability) >= _TENSOR_CORE_CAPABILITY
    if has_tensor_cores and full and half < _MIN_HALF_PRECISION_GAIN * full:
        advice = (
            "16-bit types should be much faster on this GPU: check clocks and power limit above, and the version of "
            "torch"
        )
        return warning(title, found, advice)
    return ok(title, found)


def copies(case: Case) -> Finding:
    """Check the copy rate to the GPU, from pageable and from pinned memory."""
    title = "Copies to the GPU"
    rates = case.timings.facts.get("copies")
    if not rates:
        return _unmeasured(case, title, "copies")
    found = ", ".join(f"{name} {digits(rate / 1e9, 3)}" for name, rate in rates.items()) + " GB/s"
    link = _link(case)
    if link and rates.get("pinned", link) < _MIN_LINK_RATIO * link:
        return warning(
            title, f"{found}; the PCIe link can carry {digits(link / 1e9, 3)}", _SLOW_LINK_ADVICE, "transfer"
        )
    return ok(title, found)


_SLOW_LINK_ADVICE = "check the PCIe link above, other traffic on it, and the NUMA node on which the doctor ran"


def _link(case: Case) -> float | None:
    """Return the capacity of the GPU's PCIe link in bytes per second, None if unknown."""
    device = case.device_of_torch()
    if device is None or not device.reading.pcie_width:
        return None
    lane = _LANE_BYTES_PER_SECOND.get(device.reading.pcie_generation_max or 0)
    return lane * device.reading.pcie_width if lane else None


def training_step(case: Case) -> Finding:
    """Compare a small training step on the GPU with the same step on the CPU."""
    title = "Training step"
    seconds = case.timings.facts.get("steps")
    if not seconds:
        return _unmeasured(case, title, "steps")
    gain = seconds["cpu"] / seconds["gpu"]
    found = f"CPU {_milliseconds(seconds['cpu'])}, GPU {_milliseconds(seconds['gpu'])}: {factor(gain)} times as fast"
    if gain < _MIN_STEP_GAIN:
        return warning(title, found, "the gain is small even with 8 million parameters: check the findings above")
    return ok(title, found)


def _milliseconds(seconds: float) -> str:
    return f"{digits(seconds * 1e3, 3)} ms"


def _unmeasured(case: Case, title: str, key: str) -> Finding:
    facts: Any = case.timings.facts
    error = facts.get(f"{key}_error") or (case.timings.ending and f"the Python {case.timings.ending}")
    return failure(title, error or "the measurement gave no result", "check the kernel log for Xid errors")
