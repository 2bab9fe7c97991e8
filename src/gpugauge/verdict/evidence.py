"""What is known about one process over the verdict's window. None is what could not be known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceEvidence:
    """One GPU that the process uses, means over the window; ratios 0 to 1."""

    busy: float | None = None  # of the GPU, all processes together
    own_busy: float | None = None  # of this process, where the driver tells
    unowned_busy: float = 0.0  # of nobody: of a process that has just begun, say
    sm_active: float | None = None
    tensor_active: float | None = None
    power: float | None = None  # draw by limit in force
    clock: float | None = None  # SM clock by maximum
    thermal: float | None = None  # share of time slowed down by heat, brake or hardware
    power_capped: float | None = None  # share of time slowed down by the software power cap
    power_limit_lowered: bool | None = None  # the limit in force is below the default
    transfer: float | None = None  # PCIe traffic as a share of what the link in use can carry


@dataclass(frozen=True, slots=True)
class Evidence:
    """One process. Shares are of the window's wall time; ages and durations in seconds."""

    window: float
    age: float | None = None
    inside: bool = False  # the hook speaks
    interactive: bool = False  # a notebook or a prompt: it may rest between two commands
    phase: str | None = None
    phase_age: float | None = None
    steps: float = 0.0  # in the window
    steps_ever: float = 0.0
    batches: float = 0.0
    since_progress: float | None = None  # since the last step or batch
    slow_step: float | None = None  # 99th percentile of the job's own steps
    data_wait: float | None = None  # the training thread's wait for batches
    data_wait_exposed: float | None = None  # the part in which the GPU had nothing to do
    pinned: bool | None = None  # batches come in pinned memory
    paused: float = 0.0  # phases in which nobody expects steps: evaluation, checkpoints, compilation
    local_work: float | None = None  # the rank's own work
    world_size: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)  # bytes by device kind: cpu, cuda …
    build: str | None = None  # cpu, cuda, hip
    visible_devices: int | None = None
    driver_too_old: bool | None = None  # for the build's CUDA
    arch_supported: bool | None = None
    fp32_only: bool | None = None  # 32-bit parameters, TF32 off, no autocast seen
    retries: float = 0.0
    ooms: float = 0.0
    devices: tuple[DeviceEvidence, ...] = ()
    unused_devices: int = 0  # held or allocated, not busy in the whole window
    host_has_gpu: bool = False
    cpu_throttled: float | None = None  # share of time in which the cgroup withheld CPU
    memory_pressure: float | None = None  # PSI memory or io, share of time
