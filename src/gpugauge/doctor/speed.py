"""Short measurements on the first GPU, so that a GPU that works badly is told from one that is used badly."""

from __future__ import annotations

from typing import Any

from gpugauge.doctor.case import Case
from gpugauge.doctor.condition import computing
from gpugauge.doctor.finding import Finding, failure, ok, warning

_BUSY_PERCENT = 10
_TENSOR_CORES = (7, 0)
_TENSOR_GAIN = 1.2  # by which 16 bits beat 32 at least, where there are tensor cores
_LEAST_LINK_SHARE = 0.5
_LEAST_SPEED_UP = 2.0
# Bytes a second of one lane by PCIe generation, without the line code.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}


def obstacle(case: Case) -> str:
    """Return why nothing is measured; empty when it may be."""
    if not case.options.timed:
        return "switched off (--no-timed)"
    if case.options.pid is not None:
        return "not while a process is looked at"
    if case.simulated:
        return "the GPUs are simulated"
    facts = case.torch.facts
    if not (facts.get("available") or facts.get("mps_available")):
        return "torch has no GPU that it can use"
    device = case.device_of_torch()
    asked = [device] if device else case.driver.up
    busy = [c.reading.index for c in asked if computing(c) or (c.reading.utilization_percent or 0) >= _BUSY_PERCENT]
    if busy and not case.options.force:
        return f"GPU {busy[0]} is in use; --force measures nevertheless, and slows its user down"
    return ""


def matrix_product(case: Case) -> Finding:
    """How many operations a second the GPU does in each dtype."""
    title = "Matrix product"
    rates = case.timings.facts.get("matmul")
    if not rates:
        return _unmeasured(case, title, "matmul")
    found = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in rates.items()) + " TFLOP/s"
    full, half = rates.get("float32"), max(rates.get("float16", 0.0), rates.get("bfloat16", 0.0))
    capability = (case.torch.facts.get("devices") or [{}])[0].get("capability")
    with_tensor_cores = case.build == "cuda" and capability is not None and tuple(capability) >= _TENSOR_CORES
    if with_tensor_cores and full and half < _TENSOR_GAIN * full:
        advice = (
            "16 bits should be much faster here: look at clocks and power limit above, and at the versions of torch"
        )
        return warning(title, found, advice)
    return ok(title, found)


def copies(case: Case) -> Finding:
    """How fast data comes to the GPU, from pageable and from pinned memory."""
    title = "Copies to the GPU"
    rates = case.timings.facts.get("copies")
    if not rates:
        return _unmeasured(case, title, "copies")
    found = ", ".join(f"{name} {rate / 1e9:.3g}" for name, rate in rates.items()) + " GB/s"
    link = _link(case)
    if link and rates.get("pinned", link) < _LEAST_LINK_SHARE * link:
        return warning(title, f"{found}; the PCIe link can carry {link / 1e9:.3g}", _SLOW_LINK, "transfer")
    return ok(title, found)


_SLOW_LINK = "look at the PCIe link above, at other traffic on it, and at the NUMA node that this process runs on"


def _link(case: Case) -> float | None:
    """Bytes a second that the GPU's link can carry."""
    device = case.device_of_torch()
    if device is None or not device.reading.pcie_width:
        return None
    lane = _LANE.get(device.reading.pcie_generation_max or 0)
    return lane * device.reading.pcie_width if lane else None


def training_step(case: Case) -> Finding:
    """How much faster a small training step is on the GPU than on the CPU."""
    title = "Training step"
    seconds = case.timings.facts.get("steps")
    if not seconds:
        return _unmeasured(case, title, "steps")
    gain = seconds["cpu"] / seconds["gpu"]
    found = f"CPU {_milliseconds(seconds['cpu'])}, GPU {_milliseconds(seconds['gpu'])}: {gain:.3g} times as fast"
    if gain < _LEAST_SPEED_UP:
        return warning(title, found, "the GPU brings little even for 8 million parameters: look at the findings above")
    return ok(title, found)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _unmeasured(case: Case, title: str, key: str) -> Finding:
    facts: Any = case.timings.facts
    error = facts.get(f"{key}_error") or (case.timings.ending and f"the Python {case.timings.ending}")
    return failure(title, error or "the GPU did none of it", "look for Xid errors in the kernel log")
