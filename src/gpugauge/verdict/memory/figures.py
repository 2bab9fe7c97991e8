"""The memory of trainings: room for a larger batch, fragmentation, time until it is full, imbalance between ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpugauge.verdict.memory.trend import Growth

_MOST_SECONDS = 30 * 86_400.0  # a time until full that is longer says nothing


class DeviceMemory(NamedTuple):
    """Bytes of one process on one GPU; None where they are not known. `peak` is the highest of all reports. `was_reset`
    states that the program has reset the allocator's peak.
    """

    free: float | None = None  # of the GPU or MIG device, for all processes
    limit: float | None = None  # of the process
    reserved: float | None = None
    peak: float | None = None
    after_step: float | None = None
    was_reset: bool = False

    @property
    def headroom(self) -> float | None:
        """Bytes that tensors can take beyond their peak: what the GPU has left, and the part of the cache that no
        tensor has ever needed.
        """
        if self.free is None or self.limit is None or self.reserved is None or self.peak is None:
            return None
        return min(self.free, max(0.0, self.limit - self.reserved)) + max(0.0, self.reserved - self.peak)

    @property
    def batch_ratio(self) -> float | None:
        """Factor by which the batch can grow: at most all memory that a step takes and returns grows with it."""
        space = self.headroom
        if space is None or self.after_step is None or self.peak is None or self.peak <= self.after_step:
            return None
        return 1.0 + space / (self.peak - self.after_step)

    @property
    def fragmentation(self) -> float | None:
        """Share of the held memory that tensors did not need even at their peak."""
        if self.was_reset or self.peak is None or not self.reserved:
            return None
        return max(0.0, 1.0 - self.peak / self.reserved)


def seconds_until_full(space: float | None, growth: Growth | None) -> float | None:
    """Return the time after which a growth that goes on has taken the room."""
    if space is None or growth is None or growth.per_second <= 0:
        return None
    seconds = space / growth.per_second
    return seconds if seconds <= _MOST_SECONDS else None


def least_batch_ratio(devices: Collection[DeviceMemory]) -> float | None:
    """Return the factor of the GPU with the least room, None if that of one is not known."""
    known = [ratio for device in devices if (ratio := device.batch_ratio) is not None]
    return min(known) if known and len(known) == len(devices) else None


def rank_ratios(peaks: Mapping[str, float]) -> dict[str, float]:
    """Return the peak of each rank of a job by that of the middle rank; empty for a single rank."""
    ordered = sorted(peaks.values())
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2 if len(ordered) > 1 else 0.0
    return {rank: peak / middle for rank, peak in peaks.items()} if middle else {}
