"""The status of a node, as the daemon computes it and as the commands decode it. Fields are named as in the JSON, in
its order; docs/http.md is made from them and their comments. Unknown values are None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from gpugauge.node.node import Gain

_T = TypeVar("_T")

WASTE = frozenset({"wasted", "on_cpu", "slowed", "waits", "unjudged", "unused"})
"""The kinds of problems that only waste GPU time: nothing is wrong with the node."""


def _absent() -> Any:
    """Return a field that the JSON lacks while it is None."""
    return field(default=None, metadata={"absent": True})


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice on a process."""

    cause: str | None  #: what the change removes, if the verdict has a name for it
    topic: str  #: the row of the table of advice
    change: str  #: what to change
    gain: Gain | None = None  #: the [expected gain](verdict.md#the-expected-gain), if it is known
    steps: tuple[str, ...] = ()  #: the change, one step after the other; the first may be enough
    most: float | None = None  #: the factor by which steps are faster at most, by the share of what the change removes


@dataclass(frozen=True, slots=True)
class Use:
    """What a process uses of one GPU."""

    memory_used_bytes: float | None  #: now
    load_5m: float | None  #: as that of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What the hook reports of a process since its start."""

    torch: str | None = None  #: the version of torch
    gpu_build: bool = False  #: whether its torch supports GPUs
    parameter_bytes: Mapping[str, float] = field(default_factory=dict)  #: the size of the parameters by device
    ooms: float | None = None  #: out-of-memory errors of the allocator
    alloc_retries: float | None = None  #: retries of the allocator
    #: Whether the flight recorder of torch reports the collectives of this rank; null if it is not distributed
    recorder: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame of a stack."""

    file: str  #: its last 64 characters, below the folder of installed packages
    line: int  #: the line that runs
    function: str  #: its name
    own: bool = True  #: whether it is of the program, not of torch or Python


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """A rank of a distributed training that has made no step, taken no batch and changed no phase for 10 s."""

    position: str  #: as in `training_rank_position`
    function: str | None = None  #: likewise
    since: float  #: Unix time of its last progress
    at: float | None = None  #: Unix time of the stack
    stopped: bool = False  #: whether a signal has stopped the process
    behind: bool = False  #: whether the other ranks of its job on this node wait for it
    stack: tuple[Frame, ...] = ()  #: of the training thread, the innermost call last


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """A process on a GPU, on none, or one that has ended."""

    process: str  #: the label of the metrics
    pid: int | None = None  #: that of the host, if it is visible
    command: str | None = None  #: the name of the program
    #: The owner, as far as it is known: `kind`, `namespace`, `pod`, `container`, `job_kind`, `job`, `job_source`,
    #: `job_id`, `run_id`, `user`, `command`; see [attribution.md](attribution.md)
    workload: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None  #: as in `gpu_process_info`
    torch_build: str | None = None  #: as in `gpu_process_host_info`
    role: str | None = None  #: `training` (torch is loaded), `server`, `notebook`, `display`; null if it is not known
    hook: bool = False  #: whether it reports through the hook
    started: float | None = None  #: Unix time of its start
    steps: float | None = None  #: since the start
    step_seconds: float | None = None  #: the mean time of a step in the last 5 minutes
    samples_per_second: float | None = None  #: the rate of `torch_samples_total` over the last 5 minutes
    tokens_per_second: float | None = None  #: the rate of `torch_tokens_total` over the last 5 minutes
    mfu: float | None = None  #: as `training_mfu_ratio`
    last_step: float | None = None  #: Unix time of the last step
    phase: str | None = None  #: as in `torch_phase`
    rank: int | None = None  #: as in `torch_process_info`
    world_size: int | None = None  #: as in `torch_process_info`
    #: Of a rank that holds the others up: how many times as long as the median rank here it works
    slowness: float | None = field(default=None, metadata={"absent": True})
    #: Where it is, of a rank that makes no progress
    standstill: Standstill | None = field(default=None, metadata={"absent": True})
    loader: Mapping[str, str] = field(default_factory=dict)  #: the data loader, as in `torch_loader_info`
    trouble_since: float | None = None  #: Unix time from which on something limits it, as far as the daemon has seen
    starting: bool = False  #: no report yet, but it was started with the hook, or is too young to know
    silent: bool = False  #: it was started with the hook, and nothing has arrived for two minutes
    #: While there is no verdict yet: Unix time from which on it has reported through the hook, or of the start of a
    #: `starting` one. It has the level `none`, and does not count as well
    judging_since: float | None = None
    ended: float | None = None  #: Unix time of its end; it has the level `none`, and does not count as well
    end_reason: str | None = None  #: of a training that has ended: the label of `training_end_info`
    end_words: str | None = None  #: the reason in words, with exit code or signal
    state: str | None = None  #: its state by the [verdict](verdict.md)
    state_words: str = ""  #: the state in words
    limited_by: str | None = None  #: the main cause of its lost GPU time
    limited_by_words: str | None = None  #: the cause in words
    limited_by_ratio: float | None = None  #: the share of its GPU time that the cause takes
    lost_ratio: float | None = None  #: the share of its GPU time that all causes take; null without a main cause
    causes: Mapping[str, float] | None = None  #: the share of each cause that takes 5 % or more; null without a verdict
    evidence: str | None = None  #: what the cause was found by
    runbook: str | None = None  #: the section of [runbook.md](runbook.md)
    level: str = "none"  #: `good`, `poor`, `bad`, or `none` if it is not judged
    undecidable: tuple[str, ...] = ()  #: the causes that cannot be determined
    #: The shares of the last minute by part of the steps, as `training_step_share_ratio`; of the whole time if it has
    #: ended
    step_shares: Mapping[str, float] = field(default_factory=dict)
    #: The share `rest` by what the training thread does in it: `running` on a CPU, `runnable` (it waits for one),
    #: `asleep`; empty if that is not known, as with ranks that wait for each other
    rest_shares: Mapping[str, float] = field(default_factory=dict)
    data_wait_ratio: float | None = None  #: the share of the waits for data
    advice: str | None = None  #: what to do: the first of `changes`; at its end about the reason, or for the next time
    advice_steps: tuple[str, ...] = ()  #: the advice, one step after the other
    gain_words: str | None = None  #: the expected gain of the advice, if it is known
    changes: tuple[Advice, ...] = ()  #: all advice on it, the most useful first; at the end the last
    inside: Inside | None = field(default=None, metadata={"absent": True})  #: of a process with the hook
    devices: Mapping[str, Use] | None = _absent()  #: by uuid, of a process that is not in the list of a GPU
    memory_used_bytes: float | None = None  #: of the GPU in whose list the process is
    load_5m: float | None = None  #: its load on that GPU over 5 minutes, or its time if that is shorter
    mig: tuple[str, ...] | None = _absent()  #: of a process on a GPU: the MIG devices on which it holds memory
    alive: bool | None = _absent()  #: of the last processes of a GPU that is down: whether it still runs

    @property
    def tone(self) -> str:
        """Its level as it is coloured: no process is `bad`, the colour of what must be repaired."""
        return _waste(self.level)


@dataclass(frozen=True, slots=True)
class FaultStatus:
    """A fault of a GPU, as the metric `gpu_problem` has it."""

    grave: bool  #: whether GPU time or the GPU is lost
    text: str  #: what is wrong
    advice: str | None = None  #: what to do
    runbook: str | None = None  #: the label `problem`: a section of [runbook.md](runbook.md)
    action: str = ""  #: `drain` or `reset` if the node has to be drained for it, as the label of its alert
    kind: str | None = _absent()  #: that of the problem; the faults in `health` have none
    since: float | None = None  #: Unix time of its begin, or of the first look at it
    earlier: bool = False  #: whether it may have been there before


@dataclass(frozen=True, slots=True, kw_only=True)
class XidStatus:
    """An Xid error of a GPU."""

    xid: int | None = None  #: the code
    text: str = ""  #: the code and its name
    kind: str = field(default="", metadata={"json": "class"})  #: the label of `gpu_xid_errors_total`
    last: float = 0.0  #: Unix time of the last one
    advice: str | None = None  #: null if an administrator has nothing to do
    runbook: str | None = None  #: the section of [runbook.md](runbook.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigStatus:
    """A MIG device."""

    uuid: str  #: as in the metrics
    profile: str | None = None  #: such as `3g.40gb`
    gpu_instance: str | None = None  #: as the driver counts
    compute_instance: str | None = None  #: as the driver counts
    load: float | None = None  #: the share of active multiprocessors
    memory_used_bytes: float | None = None  #: now
    memory_total_bytes: float | None = None  #: now
    allocation: str | None = None  #: as that of a GPU
    allocated_to: tuple[Mapping[str, str], ...] = ()  #: as those of a GPU
    state_words: str = ""  #: the allocation; where it is not known, `in use` or `free`


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """A GPU with its processes. One that does not answer has no values but its identity and the last ones."""

    index: int | None = None  #: that of the driver
    uuid: str  #: as in the metrics
    name: str | None = None  #: the product
    pci_bus_id: str | None = None  #: its address
    up: bool = True  #: whether it answers
    #: The label of `gpu_down_reason`, or `remembered` if only the state file knows it on a machine without GPU and
    #: driver
    down_reason: str | None = None
    advice: str | None = None  #: what to do about one that does not answer
    load: float | None = None  #: the share of the time in which it was busy, now: 0 to 1
    memory_used_bytes: float | None = None  #: now
    memory_total_bytes: float | None = None  #: now
    power_watts: float | None = None  #: now
    power_limit_watts: float | None = None  #: now
    load_5m: float | None = None  #: over 5 minutes, or since the start of the daemon if that is shorter, at least 30 s
    pcie_width: float | None = None  #: the lanes of its PCIe link now
    pcie_width_max: float | None = None  #: the lanes that GPU and slot allow
    load_10m: tuple[tuple[float, float | None], ...] = ()  #: pairs: how many seconds ago, and the load then
    temperature_celsius: float | None = None  #: now
    faults: tuple[FaultStatus, ...] = ()  #: what is wrong with it
    health: tuple[FaultStatus, ...] = ()  #: its faults, but that it is down, Xid errors, lowered clocks, a narrow link
    slowed_by: tuple[str, ...] = ()  #: what lowers the clocks because something is wrong; a power cap is not listed
    xids: tuple[XidStatus, ...] = ()  #: those of the last 24 hours and those that are not repaired, the newest first
    #: The return code by part of its readings that the driver fails to return, as `gpu_reading_failed`
    unread: Mapping[str, str] = field(default_factory=dict)
    mig: tuple[MigStatus, ...] = ()  #: its MIG devices
    allocation: str | None = None  #: `unallocated`, `allocated` or `shared`
    allocated_to: tuple[Mapping[str, str], ...] = ()  #: the workloads to which it is allocated
    processes: tuple[ProcessStatus, ...] = ()  #: the processes on it
    processes_hidden: int = 0  #: the number of further processes that the driver counts but that are not visible
    last_seen: float | None = _absent()  #: of one that does not answer: Unix time at which it answered last
    #: The processes that used it then. Those that still run have their present state and cause, the others those of
    #: that time
    last_processes: tuple[ProcessStatus, ...] | None = _absent()
    level: str = "none"  #: `good`, `poor`, `bad`, or `none` if it is not judged
    state_words: str = ""  #: its state in at most 14 characters, such as `wasted` or `in use`
    summary: str | None = None  #: its gravest problem, or the programs on it

    @property
    def tone(self) -> str:
        """Its level as it is coloured: `bad` only with a grave fault."""
        return self.level if any(fault.grave for fault in self.faults) else _waste(self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of the node: of its driver, of GPUs, of a program, or of the exporter."""

    #: `driver`, `no_gpu`, `gpu_down`, `gpu_health`, `xid`, `wasted`, `on_cpu`, `slowed`, `waits`, `unjudged`,
    #: `gpu_slowed`, `narrow_link`, `unused`, `collector` or `hook`. The errors of one GPU are one, by the gravest.
    #: `repair` is no problem of its own, but has the steps that repair all GPUs of the node
    kind: str
    grave: bool = False  #: whether GPU time or a GPU is lost
    subject: str = ""  #: the GPU or the program
    text: str = ""  #: what is wrong
    advice: str | None = None  #: what to do
    advice_steps: tuple[str, ...] = ()  #: the advice on a program, one step after the other
    of_fault: bool = False  #: whether it follows from a fault, which has the advice
    steps: tuple[str, ...] = ()  #: those of a `repair`, in their order
    since_words: str | None = None  #: since when it is there, if that is known
    detail: str | None = None  #: share, pid, owner and GPUs, or further errors and who uses the GPU
    gain_words: str | None = None  #: the expected gain of the advice, if it is known
    gpus: tuple[str, ...] = ()  #: the uuids
    processes: tuple[str, ...] = ()  #: the labels of the processes
    ratio: float | None = None  #: the mean share of the GPU time that the processes lose to this
    lost_ratio: float | None = None  #: the mean share that they lose in all
    runbook: str | None = None  #: the section of [runbook.md](runbook.md)

    @property
    def tone(self) -> str:
        """Its colour: `bad` for what must be repaired, else `poor`."""
        return "bad" if self.grave and self.kind not in WASTE else "poor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums and means over the GPUs that answer. A sum is null if the value of one of them is not known."""

    gpus: int = 0  #: the number of GPUs
    up: int = 0  #: the number of those that answer
    load: float | None = None  #: the mean load of the GPUs that report one; a GPU in MIG mode reports none
    load_gpus: int = 0  #: the number of the GPUs that report a load
    mig_load: float | None = None  #: the mean load of the MIG devices
    mig_devices: int = 0  #: the number of the MIG devices
    memory_used_bytes: float | None = None  #: a sum
    memory_total_bytes: float | None = None  #: a sum
    power_watts: float | None = None  #: a sum
    power_limit_watts: float | None = None  #: a sum


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """The driver."""

    up: bool = False  #: as in `gpugauge_driver_up`
    reason: str = "unknown"  #: as in `gpugauge_driver_up`: `ok` while it answers
    #: False if the driver is missing and the machine has no GPU, so that this is no problem
    needed: bool = True
    state_words: str = ""  #: the state in words
    released_until: float | None = _absent()  #: Unix time, while it is [released](operations.md)
    advice: str | None = _absent()  #: what to do, while it is down for a known reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of the node."""

    answer: str  #: one line for people: whether the GPUs do useful work, and if not, which and why
    level: str = "none"  #: `good`, `poor`, `bad`, or `none` if nothing is judged
    problems: tuple[Problem, ...] = ()  #: faults, then wasted time, the gravest first; empty if all is well
    totals: Totals = Totals()  #: over the GPUs
    host: str = ""  #: the name of the host
    timestamp: float  #: Unix time of the snapshot
    version: str | None  #: of the daemon
    simulated: bool = False  #: whether the GPUs are simulated
    driver: DriverStatus = DriverStatus()  #: that of the GPUs
    #: The first 200 characters of the error by the name of the collector; empty without errors. The log has all of it
    failing_collectors: Mapping[str, str] = field(default_factory=dict)
    #: A sentence if the receiver of training processes was replaced in the last 5 minutes
    #: ([operations.md](operations.md#the-receiver-and-its-limits)), or if it refuses connections of users
    hook: str | None = None
    gpus: tuple[GpuStatus, ...] = ()  #: by index
    without_gpu: tuple[ProcessStatus, ...] = ()  #: those that have torch loaded and use no GPU; with the hook first
    #: The trainings that have ended in the last minutes (`hook.linger_seconds`) and hold no GPU any more, at most 32,
    #: the last one first
    ended: tuple[ProcessStatus, ...] = ()

    @property
    def tone(self) -> str:
        """Its level as it is coloured, by its problems."""
        return self.level if any(problem.tone == "bad" for problem in self.problems) else _waste(self.level)


def _waste(level: str) -> str:
    return "poor" if level == "bad" else level


class _Field(NamedTuple):
    name: str
    key: str
    absent: bool  # while it is None
    hint: Any


def _fields(kind: Any) -> tuple[_Field, ...]:
    if kind not in _KINDS:
        hints = get_type_hints(kind)
        _KINDS[kind] = tuple(
            _Field(f.name, f.metadata.get("json", f.name), "absent" in f.metadata, hints[f.name]) for f in fields(kind)
        )
    return _KINDS[kind]


_KINDS: dict[Any, tuple[_Field, ...]] = {}


def as_json(value: Any) -> Any:
    """Return a status, or a part of it, ready for JSON."""
    if is_dataclass(value):
        found = ((f, getattr(value, f.name)) for f in _fields(type(value)))
        return {f.key: as_json(each) for f, each in found if each is not None or not f.absent}
    if isinstance(value, (tuple, list)):
        return [as_json(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def decoded(kind: type[_T], data: object) -> _T:
    """Return an object from JSON, perhaps of another version: its unknown keys are ignored. Raises ValueError."""
    given = _typed(Mapping, data)
    known = {f: _value(f.hint, given[f.key]) for f in _fields(kind) if f.key in given}
    kept = {f.name: value for f, value in known.items() if value is not None or type(None) in get_args(f.hint)}
    try:
        return kind(**kept)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _value(hint: Any, data: object) -> Any:
    if get_origin(hint) is UnionType:
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if data is None:
        return data
    if is_dataclass(hint):
        return decoded(hint, data)  # type: ignore[arg-type]  # it is a class, and no object
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        found = _typed(Sequence, data)
        kinds = [parts[0]] * len(found) if parts[1] is ... else parts
        return tuple(_value(part, each) for part, each in zip(kinds, found, strict=True))
    if origin is not None:
        return {str(key): _value(parts[1], each) for key, each in _typed(Mapping, data).items()}
    return _typed((int, float) if hint is float else hint, data)


def _typed(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{str(data)[:40]!r} where {kind} is expected")
    return data
