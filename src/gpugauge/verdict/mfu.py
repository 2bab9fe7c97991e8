"""Model FLOPs utilization: the model FLOPs of the steps in their time, over the peak of the process's GPUs."""

from __future__ import annotations

from gpugauge.verdict.peaks import peak
from gpugauge.verdict.window import Window

_FLOPS, _STEPS = "torch_model_flops_total", "torch_step_duration_seconds"


def model_flops_utilization(window: Window, process: str) -> float | None:
    """Return the ratio over the steps that ended in the window; None if the FLOPs, the dtype or a peak is not known. A
    ratio above 1 shows that one of them is wrong: it is None, too.
    """
    rises = [
        rise
        for labels, _ in window.samples(_FLOPS, "process", process)
        if (rise := window.rise(_FLOPS, process, labels["source"]))
    ]
    seconds, most = window.rise(_STEPS, process), _peak(window, process)
    # With two sources the program changed from one to the other in the window: the steps of each are not known. Both
    # sums are of the same steps, so that a step that lasts for a large part of the window counts right.
    ratio = rises[0] / seconds / most if len(rises) == 1 and seconds and most else None
    return None if ratio is None or ratio > 1 else ratio


def _peak(window: Window, process: str) -> float | None:
    """Return the sum of the peaks of the GPUs on which the process has memory, None if one is not known."""
    dtype = next((labels["matmul_dtype"] for labels, _ in window.samples("torch_build_info", "process", process)), "")
    used = {labels["uuid"] for labels, _ in window.samples("torch_memory_allocated_bytes", "process", process)}
    names = {labels["uuid"]: labels["name"] for labels, _ in window.samples("torch_device_info", "process", process)}
    peaks = [peak(names.get(uuid, ""), dtype) for uuid in used]
    return sum(filter(None, peaks)) if peaks and None not in peaks else None
