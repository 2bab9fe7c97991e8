"""The memory of tensors at the same point of each step, where a growth from step to step shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Union

Point = Union[int, str]

_EVERY_NS = 1_000_000_000
_LOST_NS = 60 * _EVERY_NS  # after which another point is taken: the optimizer of this one steps no more


class StepMemory:
    """Bytes by index of the device, read once a second at the end of a step. In a loop with several optimizers it is
    always the same one whose step counts. For the training thread.
    """

    def __init__(self, read: Callable[[int], int | None]) -> None:
        """`read` returns the bytes of tensors on a device, None if they are not known."""
        self._read = read
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.allocated: dict[int, int] = {}
        self.due = self._taken = 0  # perf_counter_ns
        self._point: Point | None = None

    def sample(self, point: Point, now: int, devices: Iterable[int]) -> None:
        """Read the `devices` that the process uses, if this is the point of the samples before."""
        if point != self._point and self._point is not None and now - self._taken < _LOST_NS:
            return
        self._point, self._taken, self.due = point, now, now + _EVERY_NS
        found = ((index, self._read(index)) for index in devices)
        self.allocated = {index: size for index, size in found if size is not None}
