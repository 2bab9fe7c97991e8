"""The sessions of the trainings of a scenario: the messages that a hook in them would send."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpugauge.driver.vendors import peak
from gpugauge.sessions.session import (
    REJECTION_REASONS,
    SESSION_END_REASONS,
    Counters,
    Session,
    SessionSource,
    ThreadTime,
)
from gpugauge.simulator.device.device import Device
from gpugauge.simulator.device.pipeline import EPOCH, Pipeline, observe
from gpugauge.simulator.device.world import Process, World
from gpugauge.simulator.scenario.model import Scenario
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SharedRecord

_COMPARED = 10  # batches of each worker, before the hook compares them
_WORKER_BYTES = 600 << 20  # memory that a loader worker does not share


def loader(p: Pipeline, batches: int, steps: int) -> wire.Loader | None:
    """Return the loader of a snapshot after so many batches and steps; None before the first batch."""
    if not batches:
        return None
    limited = p.workers > 0 and p.cpu_interval >= p.step - p.restart_seconds
    mean, granted = p.mean_worker, p.load_cpu / p.cpu_quota
    # Where the CPUs are the limit, each worker has a batch all the time, and waits while others run.
    crowded = max(0.0, p.workers * p.cpu_interval - p.load_seconds * mean) if limited else 0.0
    queued = (granted - p.load_cpu) * mean + crowded
    # The first batch of each process is not measured.
    measured = max(0, batches - max(1, p.workers))
    waited = p.host * (1.0 / p.cpu_quota - 1.0) + (0.0 if p.workers else queued)
    epochs = 1 + batches // EPOCH if p.restart else 1
    return wire.Loader(
        batches=batches,
        measured=measured,
        cpu_seconds=p.load_cpu * mean * measured,
        threads_seconds=0.0,
        queued_seconds=queued * measured,
        storage_seconds=(p.load_seconds - granted) * mean * measured,
        blocked_seconds=0.0,
        epochs=epochs,
        starts=epochs if p.workers else 0,
        start_seconds=p.restart_seconds * batches,
        slowest=1.0 / p.straggler if p.workers > 1 and batches >= _COMPARED * p.workers else None,
        worker_bytes=_WORKER_BYTES if p.workers else None,
        process_cpu_seconds=p.thread_cpu * steps,
        thread_queued_seconds=waited * steps,
    )


_DTYPES = {"torch.bfloat16": 2, "torch.float32": 4}
# Shares of the memory of a process on a GPU: parameters, tensors, and memory reserved by the allocator.
_PARAMETERS, _ALLOCATED, _ACTIVE, _RESERVED = 0.1, 0.8, 0.85, 0.95
_STEP = 0.35  # of the memory of a process: tensors after a step
_BATCH, _TOKENS = 32, 1024  # samples in a step, and tokens in a sample
_HOST_BYTES = 1 << 30  # of a model on the CPU


class SimulatedSessions:
    """The sessions of a scenario, and those of `real`. Simulated ones change once a second, and stay for a while."""

    def __init__(
        self,
        scenario: Scenario,
        real: SessionSource | None = None,
        linger: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = World(scenario.simulation())
        self._devices = {device.index: device for device in self._world.devices}
        self._trainings = {
            hashlib.sha256(f"{self._world.name}/{p.pid}".encode()).hexdigest()[:32]: p
            for p in self._world.processes
            if p.activity.pipeline and p.hook
        }
        self._real, self.linger_seconds, self._clock = real, linger, clock
        self._view_key: tuple[float, tuple[Session, ...]] | None = None
        self._view: tuple[Session, ...] = ()
        self._counters_key: tuple[int, Counters | None] | None = None
        self._counters = Counters({}, {})

    def view(self) -> tuple[Session, ...]:
        """Return all sessions; the same object as before if nothing changed. Raises what `real` raises."""
        t = float(math.floor(self._world.second(self._clock())))
        key = t, self._real.view() if self._real else ()
        if key != self._view_key:
            self._view_key, self._view = key, (*key[1], *self._simulated(t))
        return self._view

    def counters(self) -> Counters:
        """Return the rejected messages and ended sessions; the same object as before if nothing changed."""
        t = self._world.second(self._clock())
        ended = sum(0 <= p.activity.end <= t for p in self._trainings.values())
        real = self._real.counters() if self._real else None
        if (ended, real) != self._counters_key:
            self._counters_key = (ended, real)
            found = real or Counters(dict.fromkeys(REJECTION_REASONS, 0), dict.fromkeys(SESSION_END_REASONS, 0))
            self._counters = replace(found, ended={**found.ended, "finished": found.ended.get("finished", 0) + ended})
        return self._counters

    def owns(self, session: Session) -> bool:
        """Return whether a session, and thus its pid, belongs to the scenario."""
        return session.hello.session in self._trainings

    def _simulated(self, t: float) -> Iterator[Session]:
        for name, process in self._trainings.items():
            begin, end = process.activity.start, process.activity.end
            # A hook connects some time after the start of the process.
            if begin + 1 <= t < end + self.linger_seconds:
                devices = [self._devices[gpu] for gpu in process.gpus]
                yield _session(name, self._world.start_unix, devices, process, min(t, end))


def _session(name: str, start_unix: float, devices: list[Device], process: Process, t: float) -> Session:
    activity = process.activity
    assert activity.pipeline
    ended = start_unix + activity.end if t >= activity.end else None
    hello = wire.Hello(
        session=name,
        sequence=0,
        pid=process.container_pid or process.pid,
        started=start_unix + activity.start,
        facts=_facts(process, activity.pipeline, devices),
    )
    progress = _Progress(start_unix, process, activity.pipeline, t)
    snap, record = progress.snap(name, devices), progress.record()
    reason, status = ("finished", 0) if ended else ("", None)
    thread = _thread(activity.pipeline, record.seconds, snap.loader)
    return Session(hello, process.pid, process.uid, snap, ended, reason, status, record, thread)


def _thread(p: Pipeline, seconds: Mapping[str, float], loads: wire.Loader | None) -> dict[str, ThreadTime]:
    """Return the time of the training thread: it sleeps while loader workers or the storage work for it."""
    queued = {"training": min(seconds["training"], loads.thread_queued_seconds or 0.0) if loads else 0.0}
    asleep = {"loading": seconds["loading"] * (1.0 if p.workers else p.storage)}
    parts = {phase: (queued.get(phase, 0.0), asleep.get(phase, 0.0)) for phase, spent in seconds.items() if spent}
    return {phase: ThreadTime(seconds[phase] - sum(part), *part) for phase, part in parts.items()}


_CUDA = {"cuda": "12.8", "build": "cuda", "architectures": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"}
_HIP = {
    "hip": "7.2.53211-e1a6bc5663",
    "build": "rocm",
    "kernel_driver": "amdgpu",
    "architectures": "gfx900 gfx906 gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1102 gfx1150 gfx1151 "
    "gfx1200 gfx1201",
}


def _facts(process: Process, pipeline: Pipeline, devices: Sequence[Device]) -> dict[str, str]:
    amd = any("amd" in device.figures for device in devices)
    world_size = max(pipeline.world_size, process.ranks)
    script = next((word for word in process.command if word.endswith(".py")), process.command[0])
    distributed = {"rank": str(process.rank), "local_rank": str(process.rank), "world_size": str(world_size)}
    return {
        "command": wire.clean(script.rpartition("/")[2]),
        "python": "3.12.8",
        "torch": "2.13.0",
        **(_HIP if amd else _CUDA),
        **({**distributed, "backend": "nccl", "parallel": "DistributedDataParallel"} if world_size > 1 else {}),
        **({"visible_devices": str(len(process.gpus))} if process.gpus else {}),
        **({"driver_cuda": "12.8"} if process.gpus and not amd else {}),
        "device_nodes": str(max(1, len(process.gpus))),
        "tf32_matmul": "no" if pipeline.precision_unused else "yes",
        "matmul_dtype": "float32" if pipeline.precision_unused or not process.gpus else "bfloat16",
        "autocast": "no" if pipeline.precision_unused else "yes",
        "allocator": "native",
        "loader_workers": str(pipeline.workers),
        "loader_batch_size": str(_BATCH),
        "loader_pin_memory": "yes" if pipeline.pinned else "no",
        **({"cpus": str(pipeline.cores), "ranks_on_cpus": "1"} if pipeline.cores else {}),
    }


class _Progress:
    def __init__(self, start_unix: float, process: Process, pipeline: Pipeline, t: float) -> None:
        self._unix, self._process, self._pipeline, self._t = start_unix, process, pipeline, t
        self._rhythm = process.activity.rhythm
        self._observed = observe(pipeline)
        self._trained = self._rhythm.progress(t)
        # The addend keeps a step that ends at this second from being lost to rounding.
        self._steps = int(self._trained / self._observed.step + 1e-6)

    def snap(self, session: str, devices: list[Device]) -> wire.Snap:
        """Return the snapshot that the hook sends."""
        observed, trained = self._observed, self._trained
        steps, batches = self._durations(), self._batches()
        waits = max(0.0, observed.step - self._pipeline.own_step) * max(0, self._steps - 1)
        device = "cuda" if devices else "cpu"
        shared = max(self._pipeline.world_size, self._process.ranks) > 1
        return wire.Snap(
            session=session,
            sequence=max(1, int(self._t - self._rhythm.start) + 1),
            monotonic_ns=max(0, round((self._t - self._rhythm.start) * 1e9)),
            steps=steps,
            batches=batches,
            parameters=self._tensors(device, devices, _PARAMETERS),
            devices=tuple(self._device(i, device) for i, device in enumerate(devices)),
            errors=0,
            step_source="optimizer" if self._steps else None,
            optimizer_state=self._tensors(device, devices, 2 * _PARAMETERS),
            exposed_wait_seconds=observed.data_wait_exposed * trained if devices else None,
            local_work_seconds=max(0.0, steps.seconds - waits) if shared else None,
            compilations=int(self._rhythm.seconds(self._t)["compiling"] > 0),
            samples=_BATCH * self._steps,
            tokens=_TOKENS * _BATCH * self._steps,
            flops=self._flops(devices),
            loader=loader(self._pipeline, batches.count, self._steps),
        )

    def _flops(self, devices: list[Device]) -> dict[str, float] | None:
        """Return the FLOPs of a model whose products are all that the tensor cores do, at their peak."""
        rates = [peak(device.name, "bfloat16") for device in devices if device.index in self._process.works_on]
        a_step = self._observed.tensor_active * self._observed.step * sum(filter(None, rates))
        return None if None in rates or not a_step else {"stated": a_step * self._steps}

    def record(self) -> SharedRecord:
        """Return the values of the shared record."""
        phase, since = self._rhythm.phase(self._t)
        steps = int(self._rhythm.progress(since) / self._observed.step + 1e-6)
        seconds = dict.fromkeys(PHASES, 0.0) | self._rhythm.seconds(self._t)
        loading = self._observed.data_wait * self._trained
        seconds |= {"loading": loading, "training": seconds["training"] - loading}
        return SharedRecord(phase, round(self._unix + since, 2), steps, steps + 1, seconds)

    def _durations(self) -> wire.Progress:
        """Return the steps, each from the end of the step before; an interruption lengthens the step that it is in."""
        if not self._steps:
            return wire.Progress(log2=(0,) * wire.LOG2_BUCKETS)
        step = self._observed.step
        first, last = (self._rhythm.moment(count * step) for count in (1, self._steps))
        durations = self._steps - 1
        pauses = min(durations, self._rhythm.pauses(last))
        log2 = [0] * wire.LOG2_BUCKETS
        log2[wire.log2_bucket(round(step * 1e9))] += durations - pauses
        if pauses:
            longer = step + (last - first - durations * step) / pauses
            log2[wire.log2_bucket(round(longer * 1e9))] += pauses
        return wire.Progress(self._steps, last - first, self._unix + last, tuple(log2))

    def _batches(self) -> wire.Progress:
        """Return the batches; each step begins with one."""
        count = self._steps + 1 if self._trained > 0 else 0
        log2 = [0] * wire.LOG2_BUCKETS
        log2[wire.log2_bucket(round(self._observed.data_wait * self._observed.step * 1e9))] = count
        last = self._unix + self._rhythm.moment(self._steps * self._observed.step) if count else None
        return wire.Progress(count, self._observed.data_wait * self._trained, last, tuple(log2))

    def _tensors(self, kind: str, devices: list[Device], share: float) -> tuple[wire.Parameters, ...]:
        dtype = "torch.float32" if self._pipeline.precision_unused or not devices else "torch.bfloat16"
        places = [f"{kind}:{i}" for i, device in enumerate(devices) if device.index in self._process.works_on] or [kind]
        size = round((self._process.memory or _HOST_BYTES) * share)
        return tuple(wire.Parameters(place, dtype, 148, size // _DTYPES[dtype], size) for place in places)

    def _device(self, index: int, device: Device) -> wire.Device:
        held = self._process.memory or 0
        allocated, active, reserved = (round(held * share) for share in (_ALLOCATED, _ACTIVE, _RESERVED))
        calls = round(self._observed.device_calls * self._trained)
        return wire.Device(
            index,
            device.uuid,
            allocated=allocated,
            allocated_peak=active,
            reserved=reserved,
            active=active,
            inactive_split=(reserved - active) // 2,
            retries=round(self._observed.retries * self._trained),
            ooms=0,
            name=device.name,
            capability=".".join(map(str, device.figures["compute_capability"])),
            device_allocs=self._pipeline.cached + calls,
            device_frees=calls,
            step_allocated=round(held * _STEP) if self._steps else None,
            limit=device.memory_total,
        )
