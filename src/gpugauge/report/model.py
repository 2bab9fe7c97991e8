"""The report on a job, as it is written in JSON. Fields are named as there; what is not known is None, never 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpugauge.node.node import Gain
from gpugauge.workload.job import job_words

VERSION = 1
"""Rises when a field is renamed or removed, or means something else."""


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """What identifies a job, as the labels of the series have it."""

    kind: str
    namespace: str
    name: str

    @property
    def words(self) -> str:
        """What people call it."""
        shown = job_words(self.kind, self.name)
        return f"{shown} in {self.namespace}" if self.namespace else shown

    @property
    def text(self) -> str:
        """The argument that means this job and no other one."""
        return f"{self.kind}:{self.namespace}/{self.name}" if self.namespace else f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class GpuHours:
    """GPU hours, held = used + lost."""

    held: float
    used: float
    lost: Mapping[str, float]  #: by cause, those without a loss are left out

    @classmethod
    def of(cls, held: float, lost: Mapping[str, float]) -> GpuHours:
        """Return the hours of seconds."""
        hours = {cause: seconds / 3600 for cause, seconds in lost.items() if seconds > 0}
        largest = sorted(hours, key=lambda cause: -hours[cause])
        return cls(held / 3600, held / 3600 - sum(hours.values()), {cause: hours[cause] for cause in largest})

    @classmethod
    def sum(cls, parts: Sequence[GpuHours]) -> GpuHours:
        """Return the hours of all parts together."""
        lost = Counter[str]()
        for part in parts:
            lost.update(part.lost)
        return cls.of(3600 * sum(part.held for part in parts), {cause: 3600 * hours for cause, hours in lost.items()})

    @property
    def all_lost(self) -> float:
        """Those lost to all causes."""
        return sum(self.lost.values())

    @property
    def lost_share(self) -> float:
        """The share of those that are held."""
        return self.all_lost / self.held if self.held else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """What to change first."""

    cause: str  #: of the largest loss, of several runs in the last one
    change: str  #: in words
    gpu_hours: float  #: what was lost to the cause, so the most that it can return; 0 on the CPU
    gain: Gain | None  #: of the steps, the mean over the time in which it was known; the smallest of all ranks
    gain_words: str | None  #: the same in words, or the most that its share allows


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """A process of the job."""

    process: str  #: the label of the metrics
    node: str  #: the label `instance`
    command: str
    rank: int | None
    hook: bool  #: whether it reported through the hook
    devices: Sequence[str]  #: the uuids of its GPUs
    begin: float  #: Unix time
    end: float  #: Unix time; if it still runs, that of the last sample
    uncounted_seconds: float  #: of this time, those that no counter has
    end_words: str | None  #: why it ended
    gpu_hours: GpuHours | None
    steps: float | None
    step_seconds: float | None  #: mean
    step_shares: Mapping[str, float]  #: by part of the step
    memory_peak_bytes: float | None  #: of the GPU on which it had most
    memory_limit_bytes: float | None  #: of the same GPU


@dataclass(frozen=True, slots=True)
class Cost:
    """By the prices of a file. What a price is missing for is None."""

    currency: str
    held: float | None
    lost: float | None  #: the part of `held` for lost GPU hours
    kilowatt_hours: float | None  #: those of the GPUs times the PUE
    co2e_grams: float | None


@dataclass(frozen=True, slots=True)
class Curves:
    """The job over time, in intervals of equal length."""

    begin: float  #: Unix time
    interval_seconds: float
    held_gpus: Sequence[float]  #: mean
    lost_gpus: Mapping[str, Sequence[float]]  #: mean, by cause
    memory_bytes: Sequence[float | None]  #: of all GPUs
    memory_size_bytes: float | None  #: that all GPUs have
    watts: Sequence[float | None]  #: of the GPUs that no other program used
    watts_limit: float | None  #: of all GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job used, lost and cost."""

    version: int = VERSION
    simulated: bool  #: whether GPUs of its nodes do not exist
    kind: str
    namespace: str
    job: str
    title: str  #: what people call the job
    programs: Sequence[str]  #: their names
    users: Sequence[str]
    begin: float  #: Unix time
    end: float  #: Unix time; of a running job, that of the last sample
    runs: int  #: one after the other, without a process between them
    parallel: Sequence[str]  #: processes of one program that trained at the same time and are no ranks of one training
    running: bool
    end_words: Sequence[str]  #: why its processes ended
    nodes: Sequence[str]
    devices: int  #: GPUs that its processes used memory of
    products: Mapping[str, float]  #: held GPU hours by name of the GPU, "" where it is not known
    gpu_hours: GpuHours | None
    change: Change | None
    mistakes: Sequence[str]  #: what removes the known mistakes of the program
    steps: float | None  #: in each run those of the rank with most
    samples: float | None  #: of all ranks
    step_seconds: float | None  #: mean
    step_shares: Mapping[str, float]
    rest_shares: Mapping[str, float]  #: those of the rest by what the training thread does, as far as it is known
    memory_peak_bytes: float | None
    memory_limit_bytes: float | None
    energy_joules: float | None  #: of the GPUs alone, while the processes ran
    cost: Cost | None
    settings: Mapping[str, str]  #: what the hook reported of the program, by name
    processes: Sequence[ProcessUse]
    curves: Curves | None
    unknown: Sequence[str] = field(default_factory=list)  #: what could not be known, in sentences
