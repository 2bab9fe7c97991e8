"""The models of a scenario: GPUs, processes and faults, in seconds since its start. The worker gets plain data."""

from __future__ import annotations

import math
import shlex
import time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gpugauge.simulator.device.pipeline import Pipeline, observe
from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.gpuspec import Bytes, Code, Gpu, Pattern, Share
from gpugauge.simulator.scenario.loadspec import AnyLoad, Seconds, StrictModel

_NAME = "[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_POD = f"^{_NAME}/{_NAME}$"  # namespace/name


class Driver(StrictModel):
    """The driver. Its version determines the functions that its library exports and the meaning of field ids; `missing`
    are further functions that it does not export. With `foreign_events`, each event set reports the events of all GPUs.
    """

    version: str = "570.124.06"
    cuda_version: Annotated[int, Field(ge=1000)] = 12080
    missing: Annotated[list[Pattern], Field(default_factory=list)]
    foreign_events: bool = False


_PhaseSeconds = Annotated[float, Field(ge=0, le=3600)]


class Phases(StrictModel):
    """The phases of a training: it compiles at its start; at the end of every period of `every` seconds it evaluates
    and then writes a checkpoint; from the second `stalled_at` of the scenario on it makes no progress. All in seconds.
    With `spins`, a kernel of a collective then waits on the GPU for ever.
    """

    compiling: _PhaseSeconds = 0.0
    every: Seconds | None = None
    evaluating: _PhaseSeconds = 0.0
    checkpointing: _PhaseSeconds = 0.0
    stalled_at: float | None = None
    spins: bool = False

    @model_validator(mode="after")
    def _check(self) -> Phases:
        if (self.every is None) != (self.evaluating + self.checkpointing == 0):
            raise ValueError("every and evaluating or checkpointing must be given together")
        if self.every is not None and self.evaluating + self.checkpointing >= self.every:
            raise ValueError("evaluating and checkpointing leave no time to train in every period")
        return self


def _possible(pipeline: Pipeline) -> Pipeline:
    if pipeline.peer and pipeline.world_size < 2:
        raise ValueError("peer is the step of another rank: it needs a world_size of at least 2")
    if (pipeline.straggler > 1.0 and pipeline.workers < 2) or (pipeline.restart and not pipeline.workers):
        raise ValueError("straggler needs at least 2 workers, and restart at least 1")
    return pipeline


class Job(StrictModel):
    """One process on all of `gpus`, or `per_gpu` processes on each of them with consecutive pids. `memory` is that on
    each GPU; with null, the driver does not report it. `load` is the share of the time of each GPU for one process,
    `engines` the share of their time per busy second. On GPUs with MIG, the process uses the MIG device `instance`. A
    training has a `pipeline`, and optionally `phases`, instead of a load, and reports through the `hook`; without GPUs
    it trains on the CPU. GPUs that are not in `works_on` are held but not used. `pod` (`namespace/name`) is the pod in
    which it runs, in place of a `cgroup`. `cpus` are those on which it can run, as a list; `swapped` is the part of its
    memory that is swapped out.
    """

    pid: Annotated[int, Field(ge=1, lt=1 << 22)]
    gpus: list[Annotated[int, Field(ge=0)]] | Literal["all"]
    per_gpu: Annotated[int, Field(ge=1, le=64)] | None = None
    kind: Literal["compute", "graphics", "mps"] = "compute"
    memory: Bytes | None = 0
    load: AnyLoad | None = None
    pipeline: Annotated[Pipeline, AfterValidator(_possible)] | None = None
    phases: Phases | None = None
    hook: bool = True
    works_on: list[Annotated[int, Field(ge=0)]] | None = None
    intensity: Share = 0.6
    traffic: Share = 0.4
    engines: Annotated[dict[Literal["encoder", "decoder", "jpeg", "ofa"], Share], Field(default_factory=dict)]
    instance: Annotated[int, Field(ge=0)] | None = None
    start: float = 0.0
    end: float | None = None
    uid: Annotated[int, Field(ge=0)] = 1000
    command: str = "python3 train.py"
    container_pid: Annotated[int, Field(ge=1)] | None = None
    cpus: Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")] | None = None
    swapped: Bytes = 0
    cgroup: str = "/user.slice/user-1000.slice/session-2.scope"
    pod: Annotated[str, Field(pattern=_POD)] | None = None
    environment: Annotated[dict[str, str], Field(default_factory=dict)]

    @field_validator("command")
    @classmethod
    def _splits(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a shell command: {str(error).lower()}") from None
        if not words:
            raise ValueError("a command has at least one word")
        return value

    @model_validator(mode="after")
    def _check(self) -> Job:
        if self.end is not None and self.end <= self.start:
            raise ValueError("end must come after start")
        if len(set(self.gpus)) < len(self.gpus) and self.gpus != "all":
            raise ValueError("gpus names a GPU twice")
        if not set(self.works_on or ()) <= set(self.gpus) and self.gpus != "all":
            raise ValueError("works_on names a GPU that is not in gpus")
        given = self.model_fields_set
        if self.pod and "cgroup" in given:
            raise ValueError("pod and cgroup exclude each other: the cgroup follows from the pod")
        if self.pipeline is None and (given & {"phases", "hook"}):
            raise ValueError("phases and hook need a pipeline")
        derived = given & {"load", "intensity", "traffic"}
        if self.pipeline is not None and derived:
            raise ValueError(f"{min(derived)} follows from the pipeline")
        return self

    @property
    def peak(self) -> float:
        """The largest share of a GPU that one of its processes uses; the mean over the steps of a training."""
        if self.pipeline is not None:
            return observe(self.pipeline).own_busy
        return self.load.peak if self.load else 0.0


class Fault(StrictModel):
    """A fault of the calls that match, or with `every` of each so many of them. `times` counts within one worker
    process. Without `call` it applies to every
    call about a GPU, without `gpu` to every GPU. `value` replaces the outputs of a call, with `member` only that member
    of structures. With `while_exists`, the fault applies while that file exists. `stat` is a path on a file system that
    hangs, for example: unlike with `hang`, the process blocks in the kernel, and no signal ends it.
    """

    call: Pattern | None = None
    gpu: int | str | None = None
    start: float = 0.0
    end: float | None = None
    times: Annotated[int, Field(ge=1)] | None = None
    every: Annotated[int, Field(ge=1)] = 1
    code: Code | None = None
    delay: Annotated[float, Field(gt=0, le=3600)] | None = None
    hang: bool = False
    crash: bool = False
    leak: Bytes | None = None
    stat: str | None = None
    while_exists: str | None = None
    value: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    member: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Fault:
        effects = [self.code is not None, self.delay is not None, self.hang, self.crash, self.value is not None]
        effects += [self.leak is not None, self.stat is not None]
        if sum(effects) != 1:
            raise ValueError("a fault has exactly one of code, delay, hang, crash, value, leak, stat")
        if self.member and self.value is None:
            raise ValueError("member needs a value")
        return self


class Scenario(StrictModel):
    """A scenario; it starts when it is loaded. Uuids and serial numbers are derived from the name. The machine has the
    name `host`, without it that of the scenario.
    """

    name: Annotated[str, Field(min_length=1)]
    host: Annotated[str, Field(pattern=f"^{_NAME}$")] | None = None
    description: Annotated[str, Field(min_length=1)]
    driver: Annotated[Driver, Field(default_factory=Driver)]
    gpus: Annotated[list[Gpu], Field(default_factory=list)]
    processes: Annotated[list[Job], Field(default_factory=list)]
    faults: Annotated[list[Fault], Field(default_factory=list)]
    _start: dict[str, float] = PrivateAttr(default_factory=lambda: {"monotonic": time.monotonic(), "unix": time.time()})

    def simulation(self) -> dict[str, Any]:
        """Return the plain data for the `open` request of a worker, with the start: a later worker continues it."""
        return {"scenario": self.model_dump(mode="json", by_alias=True), "start": self._start}

    @field_validator("gpus", mode="before")
    @classmethod
    def _one_kind(cls, value: object) -> object:
        """Return a list for a single mapping: `gpus: {model: h100, count: 8}`."""
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        devices = [gpu for gpu in self.gpus for _ in range(gpu.count)]
        numbers = [(i, number) for i, job in enumerate(self.processes) for number in self._gpus_of(job, len(devices))]
        named = [("processes", i, "gpus", number) for i, number in numbers]
        named += [("gpus", i, "nvlink_peer", gpu.nvlink_peer or 0) for i, gpu in enumerate(self.gpus)]
        for section, i, key, number in named:
            if number >= len(devices):
                raise _at(section, i, key, f"there is no gpu {number}, the last is {len(devices) - 1}")
        self._check_pids(len(devices))
        for number, gpu in enumerate(devices):
            self._check_capacity(number, gpu, len(devices))
        known = {name for device in World(self.simulation()).devices for name in (device.index, device.uuid)}
        for index, fault in enumerate(self.faults):
            if fault.gpu is not None and fault.gpu not in known:
                raise _at("faults", index, "gpu", f"there is no gpu {fault.gpu}, the last is {len(devices) - 1}")
        return self

    def _check_pids(self, device_count: int) -> None:
        taken: set[int] = set()
        for i, job in enumerate(self.processes):
            count = len(self._gpus_of(job, device_count)) * job.per_gpu if job.per_gpu else 1
            # The process before the ranks has started them.
            pids = set(range(job.pid - (count > 1), job.pid + count))
            if taken & pids:
                raise _at("processes", i, "pid", f"pid {min(taken & pids)} is used by a process above")
            taken |= pids

    def _check_capacity(self, number: int, gpu: Gpu, device_count: int) -> None:
        """Check that simultaneous processes fit a GPU or MIG device; use is highest when a process has just started."""
        here = [(i, job) for i, job in enumerate(self.processes) if number in self._gpus_of(job, device_count)]
        capacities = gpu.capacities
        for i, newest in here:
            if newest.instance not in capacities:
                raise _at("processes", i, "instance", f"gpu {number} {gpu.parts}")
            alive = [
                job
                for _, job in here
                if job.instance == newest.instance
                and job.start <= newest.start < (math.inf if job.end is None else job.end)
            ]
            memory = sum((job.memory or 0) * (job.per_gpu or 1) for job in alive)
            free = capacities[newest.instance]
            if memory > free:
                raise _at(
                    "processes", i, "memory", f"processes on gpu {number} hold {memory >> 20} of {free >> 20} MiB"
                )
            if newest.pipeline and newest.pipeline.other and len(alive) * (newest.per_gpu or 1) < 2:
                raise _at("processes", i, "pipeline", f"other: no other process is on gpu {number}")
            working = [job for job in alive if job.works_on is None or number in job.works_on]
            loads = [job.peak * (job.per_gpu or 1) for job in working]
            peak = sum(loads) + (gpu.load.peak if gpu.load else 0.0)
            if peak > 1.000001:
                raise _at("processes", i, "load", f"the loads of gpu {number} add up to {peak:.3g}, more than 1")

    @staticmethod
    def _gpus_of(job: Job, device_count: int) -> list[int]:
        return list(range(device_count)) if job.gpus == "all" else job.gpus


def _at(section: str, index: int, key: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("scenario", "{message}", {"message": message, "at": [section, index, key]})
