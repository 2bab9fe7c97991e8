"""A training step as a pipeline, from which all that can be observed follows, and the true cause of slowness too.

Loader, copy, host, kernels and collective run beside each other as PyTorch runs them: the host launches ahead of the
GPU unless it synchronises, a copy of pageable memory holds the host, a collective that waits for a peer spins.
The true cause is no opinion: it is the component whose removal speeds the step up most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

# A component is worth naming as the cause when the run is this much faster without it.
WORTH = 1.1


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Seconds a step, unless said otherwise. The defaults are a healthy step of 100 ms."""

    load: float = 0.04  # of one worker, for one batch
    workers: int = 4  # 0: the training thread loads
    copy: float = 0.002
    pinned: bool = True  # then copies run beside kernels
    host: float = 0.03  # Python and launches
    synchronises: bool = False  # every step waits for the GPU (`.item()`)
    kernels: float = 0.1  # on a GPU of one's own at full clock
    fill: float = 0.85  # share of the multiprocessors that the kernels fill
    precision_unused: bool = False  # 32-bit arithmetic without TF32
    tensor: float = 0.5  # share of kernel time in which the tensor cores work
    peer: float = 0.0  # step of the slowest other rank
    world_size: int = 1
    other: float = 0.0  # share of the GPU that other processes take
    clock: float = 1.0  # of the maximum
    throttle: str = "thermal"  # what lowers the clock: thermal, power_cap (limit lowered)
    cpu_quota: float = 1.0  # share of the CPU time needed that the cgroup grants
    paging: float = 0.0  # share of time in which host and loader wait for swap or storage
    retries: float = 0.0  # freeing the allocator's cache and trying again

    @property
    def slowed(self) -> float:
        """How many times longer the host's and the loader's work takes."""
        return 1.0 / (self.cpu_quota * (1.0 - self.paging))

    @property
    def host_seconds(self) -> float:
        """What the training thread does itself in a step."""
        own = self.host * self.slowed + self.retries
        own += 0.0 if self.pinned else self.copy
        return own if self.workers else own + self.load * self.slowed

    @property
    def kernel_seconds(self) -> float:
        """What the GPU does for this process in a step, as long as it takes."""
        return self.kernels / self.clock / (1.0 - self.other)

    @property
    def own_step(self) -> float:
        """The step without waiting for peers."""
        beside = (self.copy if self.pinned else 0.0, self.loader_interval)
        inline = (self.host_seconds, self.kernel_seconds)
        return max(sum(inline) if self.synchronises or not self.pinned else max(inline), *beside)

    @property
    def loader_interval(self) -> float:
        """Seconds between two batches, as fast as the workers are."""
        return self.load * self.slowed / self.workers if self.workers else 0.0

    @property
    def step(self) -> float:
        """One step, all told."""
        return max(self.own_step, self.peer)


def pipeline(plain: Mapping[str, Any]) -> Pipeline:
    """Make a pipeline out of the plain data of a scenario."""
    return Pipeline(**{field.name: plain[field.name] for field in fields(Pipeline)})


REMOVED = {
    "data_loading": {"load": 0.0},
    "host_bound": {"host": 0.0, "synchronises": False},
    "transfer": {"copy": 0.0, "pinned": True},
    "waiting_for_peers": {"peer": 0.0},
    "throttled": {"clock": 1.0},
    "contention": {"other": 0.0},
    "cpu_limited": {"cpu_quota": 1.0},
    "memory_swap_io": {"paging": 0.0},
    "memory_pressure": {"retries": 0.0},
}


def without(pipeline: Pipeline, cause: str) -> Pipeline:
    """Return the pipeline as it would be if the cause were removed."""
    if cause == "underfilled":
        return replace(pipeline, kernels=pipeline.kernels * min(1.0, pipeline.fill / 0.85), fill=0.85)
    if cause == "precision_unused":
        faster = pipeline.kernels / 2 if pipeline.precision_unused else pipeline.kernels
        return replace(pipeline, kernels=faster, precision_unused=False)
    changes: dict[str, float | bool] = dict(REMOVED[cause])
    return replace(pipeline, **changes)  # type: ignore[arg-type]  # the table's keys are the fields' names


def speedups(pipeline: Pipeline) -> dict[str, float]:
    """Return by cause how many times faster the run would be without it."""
    causes = (*REMOVED, "underfilled", "precision_unused")
    return {cause: pipeline.step / without(pipeline, cause).step for cause in causes}


def true_cause(pipeline: Pipeline) -> str | None:
    """Return the component whose removal speeds the run up most, None if nothing is worth it."""
    gains = speedups(pipeline)
    best = max(gains, key=lambda cause: gains[cause])
    return best if gains[best] >= WORTH else None


@dataclass(frozen=True, slots=True)
class Observed:
    """What the driver, the kernel and the hook show of a pipeline, as shares of time unless said otherwise."""

    step: float  # seconds
    busy: float  # of the GPU, all processes
    own_busy: float
    sm_active: float
    tensor_active: float
    power: float  # of the limit
    transfer: float  # of what the link can carry
    data_wait: float
    data_wait_exposed: float
    local_work: float
    main_thread: float
    cpu_throttled: float
    memory_pressure: float
    retries: float  # a second
    own_sm_active: float  # what this process adds to sm_active
    own_power: float  # of what the GPU can draw beyond its idle power


def observe(p: Pipeline) -> Observed:
    """Return what a steady run of the pipeline shows."""
    step = p.step
    spin = max(0.0, p.peer - p.own_step)
    own_busy = min(1.0, (p.kernels / p.clock + spin) / step)
    other_busy = min(1.0 - own_busy, p.other)
    computing = p.kernels / p.clock / step
    idle = max(0.0, 1.0 - own_busy - other_busy)
    if p.workers:
        inline = p.host_seconds + (p.kernel_seconds if p.synchronises or not p.pinned else 0.0)
        waiting = max(0.0, p.own_step - inline) if p.loader_interval >= p.own_step else 0.0
    else:
        waiting = p.load * p.slowed
    wait = waiting / step
    own_sm = computing * p.fill + spin / step * 0.05
    sm = own_sm + other_busy * 0.5
    tensor = 0.0 if p.precision_unused else computing * p.tensor * p.fill
    cpu = p.host_seconds / step
    return Observed(
        step=step,
        busy=min(1.0, own_busy + other_busy),
        own_busy=own_busy,
        sm_active=min(1.0, sm),
        tensor_active=tensor,
        power=0.12 + 0.8 * (computing * p.fill + other_busy * 0.5) + 0.08 * spin / step,
        transfer=p.copy / step,
        data_wait=wait,
        data_wait_exposed=min(wait, idle),
        local_work=p.own_step / step,
        main_thread=min(1.0, cpu),
        cpu_throttled=min(1.0, (1.0 - p.cpu_quota) * min(1.0, max(cpu, p.loader_interval / step))),
        memory_pressure=p.paging * min(1.0, max(cpu, p.loader_interval / step)),
        retries=1.0 / step if p.retries else 0.0,
        own_sm_active=min(1.0, own_sm),
        own_power=0.9 * computing * p.fill + 0.09 * spin / step,
    )
