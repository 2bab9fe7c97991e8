"""Sections of docs/runbook.md for problems, named as their alerts."""

from __future__ import annotations

_ON_CPU = frozenset({"no_visible_device", "driver_mismatch", "unsupported_arch", "model_on_cpu"})
_BY_STATE = {"stalled": "TrainingStalled", "held_idle": "GpuHeldIdle", "training_on_cpu": "TrainingOnCpu"}
_XID_CLASSES = frozenset({"application", "reset", "workflow", "node", "other"})
_BY_KIND = {
    "driver": "ExporterBlind",
    "no_gpu": "ExporterBlind",
    "collector": "ExporterBlind",
    "gpu_down": "GpuLost",
    "gpu_slowed": "GpuThrottled",
    "unused": "AllocatedGpuUnused",
}


def section_of_training(state: str | None, cause: str | None) -> str | None:
    """Return the section about a training in a state, limited by a cause; None if nothing limits it."""
    if cause == "no_cuda_build":
        return "TorchCpuBuildBusy"
    if cause in _ON_CPU:
        return "TrainingOnCpu"
    if state in _BY_STATE:
        return _BY_STATE[state]
    if cause in {None, "unknown"}:
        return "TrainingLoadLow" if cause else None
    return "TrainingLimitedBy" + "".join(word.capitalize() for word in str(cause).split("_"))


def section_of_kind(kind: str) -> str | None:
    """Return the section about a kind of problem, None if it depends on more or there is none."""
    return _BY_KIND.get(kind)


def section_of_xid(xid_class: str) -> str | None:
    """Return the section about Xid errors of a class, None if nothing has to be done about them."""
    return f"GpuXid{xid_class.capitalize()}" if xid_class in _XID_CLASSES else None
