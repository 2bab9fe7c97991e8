"""How long the others let this process wait: from the timings that DistributedDataParallel takes by itself."""

from __future__ import annotations

import weakref
from typing import Any

import torch

_graph_task = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 - -1 outside of a backward pass


class LocalWork:
    """Time of the steps less the waits at the end of their backward passes, when all own gradients were there but not
    yet everybody's. DDP measures one step in 100 (the first 10, too); the latest measurement speaks for those after it.
    """

    def __init__(self) -> None:
        self._models: list[weakref.ref[Any]] = []
        self.clear()

    def clear(self) -> None:
        """Begin anew in a forked child."""
        self.nanoseconds: int | None = None
        self._counted = (0, 0)

    def know(self, model: Any) -> None:
        """Remember a model that DDP wraps."""
        self._models.append(weakref.ref(model, self._models.remove))

    def update(self, steps: int, nanoseconds: int) -> None:
        """Take what the steps add up to so far: how many durations, and their sum."""
        new_steps, new_time = steps - self._counted[0], nanoseconds - self._counted[1]
        self._counted = (steps, nanoseconds)
        # A step inside a backward pass may hold the lock under which DDP keeps its timings.
        if not self._models or new_steps <= 0 or _graph_task is None or _graph_task() != -1:
            return
        waits = [wait for wait in map(_wait, [model() for model in self._models]) if wait is not None]
        if waits:
            self.nanoseconds = (self.nanoseconds or 0) + max(0, new_time - new_steps * sum(waits))


def _wait(model: Any) -> int | None:
    """Return the wait for peers in the step that DDP measured last, in ns."""
    data = model._get_ddp_logging_data() if model is not None else {}  # noqa: SLF001 - documented in its docstring
    communication = data.get("backward_comm_time")
    overlap = data.get("backward_compute_comm_overlap_time")
    return max(0, communication - overlap) if communication and overlap is not None else None
