"""One problem of a node as plain data, the order of problems, and the sections of docs/runbook.md, named as alerts."""

from __future__ import annotations

from typing import Any

from gpugauge.faults import table as faults
from gpugauge.status.model import WASTE, Problem
from gpugauge.verdict.causes import ON_CPU, STALLS

# Kinds of problems, the faults before what only wastes time; grave ones are shown first, each part in this order.
KINDS = (
    *("driver", "no_gpu", "gpu_down", "gpu_health", "xid", "gpu_slowed", "narrow_link", "repair", "collector", "hook"),
    *("wasted", "on_cpu", "slowed", "waits", "unjudged", "unused"),
)
BROKEN = frozenset({"driver", "no_gpu", "gpu_down"})  # a GPU cannot be used
_GRAVE = frozenset({"driver", "no_gpu", "gpu_down", "wasted", "on_cpu"})
_BY_STATE = {"stalled": "TrainingStalled", "held_idle": "GpuHeldIdle", "training_on_cpu": "TrainingOnCpu"}
# A fault of a GPU has the section of its name.
_BY_KIND = {
    "driver": "ExporterBlind",
    "no_gpu": "ExporterBlind",
    "collector": "ExporterCollectorFailing",
    "unjudged": "TrainingLoadLow",
    "unused": "AllocatedGpuUnused",
}


def problem(kind: str, subject: str, text: str, advice: str | None = None, **more: Any) -> Problem:
    """Return a problem, by default as grave and with the section that its kind has."""
    default: dict[str, Any] = {"grave": kind in _GRAVE, "runbook": _BY_KIND.get(kind)}
    return Problem(kind=kind, subject=subject, text=text, advice=advice, **{**default, **more})


def order(found: Problem) -> tuple[float, ...]:
    """Return the sort key: faults first, as for the exit status, the gravest first, then a repair, then what only
    wastes time; of a kind, those with most GPUs and the largest share.
    """
    ratio = 1.0 if found.ratio is None else found.ratio
    fault = faults.order(found.runbook or "")
    later = not found.grave or found.kind == "repair"
    return found.kind in WASTE, later, KINDS.index(found.kind), fault, -len(found.gpus), -ratio


def section_of_training(state: str | None, cause: str | None) -> str | None:
    """Return the section about a training in a state, limited by a cause; None if nothing limits it."""
    if cause == "no_cuda_build":
        return "TorchCpuBuildBusy"
    if cause in ON_CPU:
        return "TrainingOnCpu"
    if state in _BY_STATE or cause == STALLS:
        return _BY_STATE["stalled" if cause == STALLS else str(state)]
    if cause in {None, "unknown"}:
        return "TrainingLoadLow" if cause else None
    return "TrainingLimitedBy" + "".join(word.capitalize() for word in str(cause).split("_"))
