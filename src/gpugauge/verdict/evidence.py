"""The evidence about one process over the window of the verdict. None means unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_UNUSED_RATIO = 0.005  # a GPU that is less busy is unused
_VARIES = 0.1  # spread of load or pace, or share of uneven steps, from which on several causes may take turns
LIMITING_WAIT = 0.05  # a loader with workers for which the thread waits longer is the slowest part of the pipeline
_ALWAYS_LOADING = 0.75  # share of their time in which workers load if the training waits for them all the time
COUNTS = ("retries", "ooms", "unused", "held")
_SHARES = ("data_wait", "asleep", "local_work", "cpu_throttled", "memory_pressure")
# What people see of several GPUs.
_OF_DEVICES: Mapping[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(("busy", "own_busy", "sm_active", "tensor_active"), lambda values: sum(values) / len(values)),
    "clock": min,
    "slowed": max,
    "transfer": max,
}


class DeviceEvidence(NamedTuple):
    """One GPU that the process uses: means over the evidence's time, ratios from 0 to 1."""

    busy: float | None = None  # of the GPU, all processes together
    measured: bool = True  # whether the driver reports its load, which it does not for MIG devices
    own_busy: float | None = None  # of this process, if the driver reports it
    unowned_busy: float = 0.0  # of no known process, for example of one that has just started
    spread: float = 0.0  # between the lowest and the highest load, or SM activity, of an interval of the window
    shared: bool = False  # other processes have memory on it
    part: float = 1.0  # that this process holds of it; the parts of all processes are at most 1
    overlaps: bool = False  # … and its processes compute at the same time (MPS)
    sm_active: float | None = None
    tensor_active: float | None = None
    tensor_speedup: float | None = None  # peak rate of the tensor cores by that of 32-bit arithmetic, not a share
    power: float | None = None  # draw as a share of the limit in force
    clock: float | None = None  # SM clock as a share of the maximum
    thermal: float | None = None  # share of time slowed down by temperature, power brake or hardware
    power_capped: float | None = None  # share of time slowed down by the software power cap
    power_limit_lowered: bool | None = None  # the limit in force is below the default
    transfer: float | None = None  # share of time that the PCIe traffic takes

    @property
    def slowed(self) -> float:
        """The share of time in which the clocks are lowered, but for a power cap that is the default."""
        return max(self.thermal or 0.0, (self.power_capped or 0.0) if self.power_limit_lowered else 0.0)


class Evidence(NamedTuple):
    """One process. Shares refer to the time of the training in the window, without its pauses; ages and durations are
    in seconds.
    """

    window: float  # that time
    age: float | None = None
    inside: bool = False  # the process reports through the hook
    interactive: bool = False  # a notebook or a prompt: idle between two commands
    phase: str | None = None
    phase_age: float | None = None
    excused: bool = False  # another rank of its job is in a phase without steps, and not for too long
    recent: Mapping[str, float] = {}  # seconds in each phase during the last 10 s
    worked: bool = False  # a phase of training or evaluating was seen, or a wait for a batch has ended
    steps: float | None = None  # in the window
    steps_ever: float | None = None
    pace: float = 0.0  # between the most and the fewest steps of an interval of the window, as a share of their mean
    swing: float = 0.0  # spread of waits, sleep, own work and copies between intervals of the window
    uneven: float = 0.0  # share of the steps of the window that are much shorter or longer than their mean
    batches: float | None = None  # in the window
    batches_ever: float | None = None
    since_progress: float | None = None  # since the last step or batch
    slow_step: float | None = None  # 99th percentile of the step durations
    data_wait: float | None = None  # share: the training thread waits for batches of the training
    data_wait_exposed: float | None = None  # the part of data_wait in which the GPU is idle
    pinned: bool | None = None  # whether batches are in pinned memory
    loader_workers: int | None = None  # processes that load batches; with 0 the training thread loads them
    loading: float | None = None  # share of their time in which the workers load batches, waits for resources included
    loader_queued: float | None = None  # share of the time of a batch in which its worker waits for a CPU
    loader_storage: float | None = None  # … and for storage
    asleep: float | None = None  # share in which the training thread sleeps and waits for no batch
    runnable: float | None = None  # share in which it waits for a CPU
    paused: float = 0.0  # phases without steps (evaluation, checkpoints, compilation), as a share of the whole window
    mixed: float = 0.0  # pauses that could not be separated from the training, as a share of both
    local_work: float | None = None  # share of the rank's own work in its steps
    slow_network: bool = False  # the collectives of all ranks, which are here, are slow, and no rank is late
    world_size: int | None = None
    parameters: Mapping[str, float] = {}  # bytes by kind of device: cpu, cuda, …
    torch_devices: bool = False  # torch reports its devices: the process has initialised CUDA
    build: str | None = None  # cpu, cuda, hip
    visible_devices: int | None = None
    driver_too_old: bool | None = None  # for the CUDA version of the build
    arch_supported: bool | None = None  # by the build, for all GPUs of the process
    fp32_only: bool | None = None  # 32-bit parameters, TF32 off, no autocast
    retries: float = 0.0
    ooms: float = 0.0
    device_allocs: float | None = None  # calls of the allocator to the driver in the window
    device_frees: float | None = None
    devices: tuple[DeviceEvidence, ...] = ()
    spins: float | None = None  # seconds for which all GPUs of the job have been busy with kernels that wait
    unused_devices: int = 0  # held or allocated, but not busy in the whole window
    held: float = 0.0  # GPUs, as parts of those whose load is known
    host_has_gpu: bool = False
    cpu_throttled: float | None = None  # share of time in which the cgroup was throttled
    memory_pressure: float | None = None  # share of time, PSI of memory or io
    intervals: tuple[Evidence, ...] = ()  # the same of parts of the window, where it varies

    @property
    def judged_devices(self) -> int:
        """The number of held GPUs whose load the driver reports. Of the others no loss can be seen."""
        return sum(device.measured for device in self.devices) + self.unused_devices

    @property
    def offloads(self) -> bool:
        """Whether most parameters are on the CPU, while the GPU computes with them."""
        return self.parameters.get("cpu", 0.0) > 0.5 * sum(self.parameters.values())

    @property
    def varies(self) -> bool:
        """Whether load or pace vary within the window: several causes may take turns, unseen in means."""
        # In pauses, too, clocks are not lowered.
        slowed = (min(device.slowed, 1.0 - device.slowed) for device in self.devices if not self.mixed)
        spreads = (device.spread for device in self.devices)
        return max(self.pace, self.swing, *spreads, *slowed) >= _VARIES

    @property
    def doubtful(self) -> bool:
        """Whether steps vary, workers limit the training only at times, or evidence is missing that separates slow code
        from a wait, or the own load from that of others.
        """
        waited = self.data_wait if self.data_wait_exposed is None else self.data_wait_exposed
        limits = (self.loader_workers or 0) > 1 and (waited or 0.0) >= LIMITING_WAIT
        return (
            self.uneven >= _VARIES
            or (limits and (self.loading or 0.0) < _ALWAYS_LOADING)
            or self.offloads
            or self.asleep is None
            or any(d.shared and d.own_busy is None for d in self.devices)
        )

    def known(self) -> dict[str, float]:
        """Return the known values that people see, those of several GPUs as one: shares, and COUNTS that are not 0."""
        found = {name: getattr(self, name) for name in _SHARES}
        for name, of_all in _OF_DEVICES.items():
            each = [value for device in self.devices if (value := getattr(device, name)) is not None]
            found[name] = of_all(each) if each else None
        busy, active, size = found["busy"], found["sm_active"], sum(self.parameters.values())
        found["idle"] = None if busy is None else 1.0 - busy
        found["filled"] = min(1.0, active / busy) if busy and active is not None else None
        found["parameters_on_cpu"] = self.parameters.get("cpu", 0.0) / size if size else None
        counts = (self.retries, self.ooms, self.unused_devices, self.judged_devices)
        found |= {name: count or None for name, count in zip(COUNTS, counts, strict=True)}
        return {name: value for name, value in found.items() if value is not None}


def used(devices: Sequence[DeviceEvidence]) -> tuple[tuple[DeviceEvidence, ...], int, float]:
    """Return the GPUs that a process uses, the number of those that it holds and nobody uses, and how many it holds in
    parts; all GPUs and 0 if it uses none. A GPU on which it only has a context, as ranks often have on the first, is
    the others'.
    """
    busy = [d for d in devices if d.busy is None or d.busy >= _UNUSED_RATIO]
    found = tuple([d for d in busy if not _is_of_others(d)] or busy or devices)
    unused = [d for d in devices if d.busy is not None and d.busy < _UNUSED_RATIO] if busy else []
    return found, len(unused), sum(d.part for d in (*found, *unused) if d.measured)


def _is_of_others(d: DeviceEvidence) -> bool:
    if d.busy is None or d.own_busy is None or d.own_busy >= _UNUSED_RATIO:
        return False
    return d.busy - d.own_busy - d.unowned_busy >= 0.5 * d.busy
