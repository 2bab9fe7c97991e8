"""What is concluded of a training: its verdict with the gains, and its memory. Nothing in it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpugauge.verdict.memory.trend import Growth


class Verdict(NamedTuple):
    """`causes` are the shares of the held GPU time lost to each cause, `minor` is that of all causes that are too small
    to be among them. `limited_by` is the cause to remove first.
    """

    state: str
    confidence: Literal["inside", "outside"]
    causes: Mapping[str, float] = {}
    limited_by: str | None = None
    undecidable: frozenset[str] = frozenset()
    minor: float = 0.0

    @property
    def lost(self) -> float | None:
        """The share of the held GPU time that is lost, to all causes; None if nothing limits it."""
        return sum(self.causes.values()) if self.limited_by and self.causes else None


@dataclass(frozen=True, slots=True)
class Gain:
    """Factors of the step rate without a cause, 1 or more."""

    expected: float  #: the factor
    lower: float  #: its lower bound
    upper: float  #: its upper bound
    next: str  #: the cause that limits the step then, `gpu` for its kernels or `cpu` for its computation on the CPU


class Diagnosis(NamedTuple):
    """`reason` is one of verdict.loaders.REASONS. `workers` is the number that helps, the present one if more do not
    help, None if that is not known. `speedup` is the expected factor of the step rate with its lower bound, 1.0 if
    nothing changes.
    """

    reason: str
    workers: int | None = None
    speedup: float | None = None
    lower: float | None = None


class Judged(NamedTuple):
    """The verdict on a process: shares of a step by part and of the rest, gains by cause, diagnosis of its loader."""

    verdict: Verdict
    shares: Mapping[str, float] = {}
    gains: Mapping[str, Gain] = {}
    mfu: float | None = None
    loader: Diagnosis | None = None
    rest: Mapping[str, float] = {}
    known: Mapping[str, float] = {}  # the values of its evidence, as of Evidence.known()
    early: bool = False  # the evidence is not yet enough for a cause and for advice


class OnDevice(NamedTuple):
    """The memory of a process on a GPU: what is left of it, and its growth with each step; see DeviceMemory."""

    headroom: float | None = None
    fragmentation: float | None = None
    growth: Growth | None = None
    full_seconds: float | None = None


class Memory(NamedTuple):
    """The memory of a process: on its GPUs by uuid, beside the other ranks, and on the host by part."""

    devices: Mapping[str, OnDevice] = {}
    batch_ratio: float | None = None  # of the GPU with the least room
    rank_ratio: float | None = None
    full_seconds: float | None = None  # of its cgroup
    growth: Mapping[str, Growth] = {}  # of host memory, in each second
