"""Time of the steps without the waits for other ranks, from the timings of DistributedDataParallel."""

from __future__ import annotations

import weakref
from typing import Any

import torch

_graph_task = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 - -1 outside of a backward pass


class LocalWork:
    """Time of the steps less the waits for gradients of other ranks at the end of backward passes.

    DDP measures the first 10 steps and one step in 100. The latest measurement holds for the steps after it.
    """

    def __init__(self) -> None:
        self._models: list[weakref.ref[Any]] = []
        self.clear()

    def clear(self) -> None:
        """Start from zero, in a forked child."""
        self.nanoseconds: int | None = None
        self._counted = (0, 0)

    def add_model(self, model: Any) -> None:
        """Add a model wrapped by DDP, without keeping it alive."""
        self._models.append(weakref.ref(model, self._models.remove))

    def update(self, steps: int, nanoseconds: int) -> None:
        """Update the time by the totals of all steps so far: number of durations, and their sum."""
        new_steps, new_time = steps - self._counted[0], nanoseconds - self._counted[1]
        self._counted = (steps, nanoseconds)
        # A step inside a backward pass may hold the lock of DDP's timings.
        if not self._models or new_steps <= 0 or _graph_task is None or _graph_task() != -1:
            return
        waits = [wait for wait in map(_wait, [model() for model in self._models]) if wait is not None]
        if waits:
            self.nanoseconds = (self.nanoseconds or 0) + max(0, new_time - new_steps * sum(waits))


def _wait(model: Any) -> int | None:
    """Return the wait for other ranks in the step that DDP measured last, in nanoseconds; None if unknown."""
    data = model._get_ddp_logging_data() if model is not None else {}  # noqa: SLF001 - documented in its docstring
    communication = data.get("backward_comm_time")
    overlap = data.get("backward_compute_comm_overlap_time")
    return max(0, communication - overlap) if communication and overlap is not None else None
