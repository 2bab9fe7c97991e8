"""A training step as a pipeline, and the same step without a cause.

Host, kernels, copies and workers overlap as in PyTorch: the host launches kernels ahead of the GPU, unless it waits for
the GPU in each step or copies pageable memory; workers load batches beside both; a collective waits for slower ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpugauge.verdict.causes import CAUSES

GPU, CPU = "gpu", "cpu"
"""The limits of a step that no cause slows down: its kernels, or its computation on the CPU."""

LIMITS = {GPU: "its computation on the GPU", CPU: "its computation on the CPU"}
"""The same in words."""


class Step(NamedTuple):
    """Parts of a step, as shares of the measured time."""

    kernels: float | None = 0.0  # with the time that other processes take from the GPU; None on the CPU
    host: float = 0.0  # Python and launches
    asleep: float = 0.0  # the training thread, outside of its loader
    load: float = 0.0  # of batches by the training thread
    loader: float = 0.0  # from one batch of the workers to the next
    copy: float = 0.0
    pinned: bool = True  # copies overlap with kernels
    serial: bool = False  # the host waits for the GPU in each step
    allocator: float = 0.0  # retries, in which the GPU is idle
    peers: float = 0.0  # the step of the slowest other rank, or the collectives of a slow network
    why_it_waits: str = "waiting_for_peers"  # the cause of `peers`
    paused: float = 0.0  # phases without steps
    slower: Mapping[str, float] = {}  # share of the kernels' time that each cause costs
    withheld: Mapping[str, float] = {}  # share of the time of host and loader, by cause

    @property
    def time(self) -> float:
        """The time of the step."""
        return max(self._beside().values()) + self.paused

    @property
    def limit(self) -> str:
        """The cause that takes most of the step's time, GPU or CPU."""
        beside = self._beside()
        first = max(beside, key=lambda part: beside[part])
        if first != _INLINE:
            return first
        pageable = 0.0 if self.pinned else self.copy
        host = {
            "host_bound": self.host,
            "waiting_elsewhere": self.asleep,
            "data_loading": self.load,
            "transfer": pageable,
        }
        if self.kernels is None:
            host[CPU] = host.pop("host_bound")
        elif self._waits:
            host[GPU] = self.kernels
        elif self.kernels >= sum(host.values()):
            return GPU
        return max(host, key=lambda part: host[part])

    def without(self, cause: str) -> Step:
        """Return the step without a cause; the same step if the cause takes no part in it."""
        if cause in self.slower:
            return self._replace(kernels=(self.kernels or 0.0) * (1.0 - self.slower[cause]))
        if cause in self.withheld:
            left = 1.0 - self.withheld[cause]
            return self._replace(host=self.host * left, load=self.load * left, loader=self.loader * left)
        return self._replace(**(CAUSES[cause].removed if cause in CAUSES else {}))

    @property
    def _waits(self) -> bool:
        return self.serial or not self.pinned

    def _beside(self) -> dict[str, float]:
        """Return the times that overlap: the longest is that of the step."""
        host = self.host + self.asleep + self.load + (0.0 if self.pinned else self.copy)
        kernels = self.kernels or 0.0
        inline = host + kernels if self._waits else max(host, kernels)
        return {
            _INLINE: inline + self.allocator,
            "transfer": self.copy if self.pinned else 0.0,
            "data_loading": self.loader,
            self.why_it_waits: self.peers,
        }


_INLINE = "inline"
