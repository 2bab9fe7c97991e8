"""A training step as a pipeline of loader, copy, host, kernels and collective, which overlap as they do in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

EPOCH = 200


_T = TypeVar("_T")


def _key(default: _T, **limits: float) -> _T:
    """Return a field with its limits, which pydantic checks in a scenario."""
    return field(default=default, metadata={"strict": True, **limits})


def _seconds(default: float) -> float:
    return _key(default, ge=0, le=3600)


def _share(default: float) -> float:
    return _key(default, ge=0, le=1)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Seconds per step, unless a comment has another unit. The defaults are a healthy step of 100 ms."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    load: float = _seconds(0.04)  # of one worker, for one batch
    storage: float = _share(0.0)  # share of `load` that is a wait for storage; the rest is work of a CPU
    workers: int = _key(4, ge=0, le=1024)  # 0: the training thread loads the batches
    straggler: float = _key(1.0, ge=1, le=1000)  # factor by which one of the workers takes longer; the others wait
    restart: float = _seconds(0.0)  # of the workers, which start again in each epoch; an epoch has EPOCH steps
    cores: int | None = _key(None, ge=1, le=4096)  # CPUs of the process, None for more than it needs
    copy: float = _seconds(0.002)
    pinned: bool = _key(True)  # copies overlap with kernels
    host: float = _seconds(0.03)  # Python and launches
    synchronises: bool = _key(False)  # every step waits for the GPU (`.item()`)
    kernels: float = _key(0.1, gt=0, le=3600)  # on an exclusive GPU at full clock
    fill: float = _key(0.85, gt=0, le=1)  # share of the multiprocessors that the kernels use
    precision_unused: bool = _key(False)  # 32-bit arithmetic without TF32
    tensor_speedup: float = _key(2.0, ge=1, le=100)  # of the kernels, in a lower precision
    tensor: float = _share(0.5)  # share of kernel time in which the tensor cores work
    peer: float = _seconds(0.0)  # the step of the slowest other rank
    world_size: int = _key(1, ge=1)
    other: float = _key(0.0, ge=0, lt=1)  # share of the GPU that other processes take
    clock: float = _key(1.0, gt=0, le=1)  # of the maximum
    throttle: Literal["thermal", "power_cap"] = "thermal"  # the reason of a lower clock; power_cap: a lower limit
    cpu_quota: float = _key(1.0, gt=0, le=1)  # share of the needed CPU time that the cgroup grants
    paging: float = _key(0.0, ge=0, lt=1)  # share of time in which host and loader wait for swap or storage
    retries: float = _key(0.0, ge=0, le=1000)  # of the allocator, per step: it frees and allocates its cached blocks
    cached: int = _key(100, ge=0, le=100_000)  # blocks that a retry frees
    device_call: float = _seconds(0.0005)  # of the driver, to allocate or free a block

    @property
    def slowed(self) -> float:
        """Factor by which the work of the host takes longer."""
        return 1.0 / (self.cpu_quota * (1.0 - self.paging))

    @property
    def host_seconds(self) -> float:
        """Seconds of work of the training thread per step."""
        own = self.host * self.slowed
        own += 0.0 if self.pinned else self.copy
        return own if self.workers else own + self.load_seconds

    @property
    def allocator_seconds(self) -> float:
        """Seconds per step in which the allocator retries, and the GPU is idle."""
        return self.retries * 2 * self.cached * self.device_call

    @property
    def kernel_seconds(self) -> float:
        """Seconds of work of the GPU for this process per step."""
        return self.kernels / self.clock / (1.0 - self.other)

    @property
    def own_step(self) -> float:
        """Seconds of the step without waiting for peers."""
        beside = (self.copy if self.pinned else 0.0, self.loader_interval)
        inline = (self.host_seconds, self.kernel_seconds)
        together = sum(inline) if self.synchronises or not self.pinned else max(inline)
        return max(together + self.allocator_seconds, *beside) + self.restart_seconds

    @property
    def loader_interval(self) -> float:
        """Seconds between two batches of the workers."""
        if not self.workers:
            return 0.0
        return max(self.load_seconds * self.straggler / self.workers, self.cpu_interval)

    @property
    def restart_seconds(self) -> float:
        """Seconds per step in which the training waits for the start of workers."""
        return self.restart / EPOCH if self.workers else 0.0

    @property
    def cpu_interval(self) -> float:
        """Seconds in which the CPUs do the work of a step."""
        return self.cpu_seconds / self.cores if self.cores else 0.0

    @property
    def load_seconds(self) -> float:
        """Seconds of one worker for one batch, on a CPU of its own."""
        return (self.load_cpu / self.cpu_quota + self.load * self.storage) / (1.0 - self.paging)

    @property
    def load_cpu(self) -> float:
        """Seconds of CPU time of one worker for one batch."""
        return self.load * (1.0 - self.storage)

    @property
    def mean_worker(self) -> float:
        """Mean duration of a batch by that of a worker that is not slow."""
        return 1.0 + (self.straggler - 1.0) / max(1, self.workers)

    @property
    def thread_cpu(self) -> float:
        """Seconds of CPU time of the training thread per step."""
        return self.host + (0.0 if self.pinned else self.copy) + (0.0 if self.workers else self.load_cpu)

    @property
    def cpu_seconds(self) -> float:
        """Seconds of CPU time per step, of the training thread and of loader workers."""
        return self.thread_cpu + (self.load_cpu * self.mean_worker if self.workers else 0.0)

    @property
    def step(self) -> float:
        """Seconds of the step."""
        return max(self.own_step, self.peer)


@dataclass(frozen=True, slots=True)
class Observed:
    """The observable values of a pipeline, as shares of time unless a comment has another unit."""

    step: float  # seconds
    own_busy: float  # of the GPU
    tensor_active: float
    transfer: float  # of the bandwidth of the link
    data_wait: float
    data_wait_exposed: float
    cpu_throttled: float
    memory_pressure: float
    retries: float  # per second
    device_calls: float  # per second, to allocate; as many to free
    own_sm_active: float  # of this process
    own_power: float  # of the power above the idle power


def observe(p: Pipeline) -> Observed:
    """Return the observable values of a steady run."""
    step = p.step
    spin = max(0.0, p.peer - p.own_step)
    own_busy = min(1.0, (p.kernels / p.clock + spin) / step)
    computing = p.kernels / p.clock / step
    if p.workers:
        inline = p.host_seconds + p.allocator_seconds
        inline += p.kernel_seconds if p.synchronises or not p.pinned else 0.0
        steady = p.own_step - p.restart_seconds
        waiting = p.restart_seconds + (max(0.0, steady - inline) if p.loader_interval >= steady else 0.0)
    else:
        waiting = p.load_seconds
    wait = waiting / step
    own_idle = max(0.0, p.own_step - p.kernel_seconds - p.allocator_seconds) / step
    own_sm = computing * p.fill + spin / step * 0.05
    tensor = 0.0 if p.precision_unused else computing * p.tensor * p.fill
    cpu = (p.host_seconds - (0.0 if p.pinned else p.copy)) / step
    return Observed(
        step=step,
        own_busy=own_busy,
        tensor_active=tensor,
        transfer=p.copy / step,
        data_wait=wait,
        data_wait_exposed=min(wait, own_idle),
        cpu_throttled=min(1.0, (1.0 - p.cpu_quota) * min(1.0, max(cpu, p.loader_interval / step))),
        memory_pressure=p.paging * min(1.0, max(cpu, p.loader_interval / step)),
        retries=p.retries / step,
        device_calls=p.retries * p.cached / step,
        own_sm_active=min(1.0, own_sm),
        own_power=0.9 * computing * p.fill + 0.09 * spin / step,
    )
