"""The status of a node, as the daemon computes it and as the commands decode it. Fields are named as in the JSON, in
its order; docs/http.md says what they mean. Unknown values are None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from gpugauge.node.judged import Gain

_T = TypeVar("_T")


def _absent() -> Any:
    """Return a field that the JSON lacks while it is None."""
    return field(default=None, metadata={"absent": True})


@dataclass(frozen=True, slots=True)
class Advice:
    """One change. `topic` is the row of the table of advice; `cause` is what the change removes, if the verdict has a
    name for it; `gain` is None if it is not known.
    """

    cause: str | None
    topic: str
    change: str
    gain: Gain | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """What a process uses of one GPU."""

    memory_used_bytes: float | None
    load_5m: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What the hook reports of a process since its start. `gpu_build` is whether its torch supports GPUs."""

    torch: str | None = None
    gpu_build: bool = False
    parameter_bytes: Mapping[str, float] = field(default_factory=dict)
    ooms: float | None = None
    alloc_retries: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """A process on a GPU, on none, or one that has ended."""

    process: str
    pid: int | None = None
    command: str | None = None
    workload: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    torch_build: str | None = None
    role: str | None = None
    hook: bool = False
    started: float | None = None
    steps: float | None = None
    step_seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    last_step: float | None = None
    phase: str | None = None
    rank: int | None = None
    world_size: int | None = None
    loader: Mapping[str, str] = field(default_factory=dict)
    starting: bool = False
    silent: bool = False
    judging_since: float | None = None
    ended: float | None = None
    end_reason: str | None = None
    end_words: str | None = None
    state: str | None = None
    state_words: str = ""
    limited_by: str | None = None
    limited_by_words: str | None = None
    limited_by_ratio: float | None = None
    evidence: str | None = None
    runbook: str | None = None
    level: str = "none"
    undecidable: tuple[str, ...] = ()
    step_shares: Mapping[str, float] = field(default_factory=dict)
    data_wait_ratio: float | None = None
    advice: str | None = None
    gain_words: str | None = None
    changes: tuple[Advice, ...] = ()
    inside: Inside | None = field(default=None, metadata={"absent": True})  # of a process with the hook
    devices: Mapping[str, Use] | None = _absent()  # by uuid, of a process that is not in the list of a GPU
    memory_used_bytes: float | None = None  # of the GPU in whose list the process is
    load_5m: float | None = None
    mig: tuple[str, ...] | None = _absent()  # of a process on a GPU
    alive: bool | None = _absent()  # of the last processes of a GPU that is down


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultStatus:
    """A fault of a GPU. `kind` is that of the problem; the faults in `health` have none."""

    grave: bool = False
    text: str
    advice: str | None = None
    runbook: str | None = None
    kind: str | None = _absent()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidStatus:
    """An Xid error of a GPU."""

    xid: int | None = None
    text: str = ""
    kind: str = field(default="", metadata={"json": "class"})
    last: float = 0.0
    advice: str | None = None
    runbook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigStatus:
    """A MIG device."""

    uuid: str
    profile: str | None = None
    gpu_instance: str | None = None
    compute_instance: str | None = None
    load: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    allocation: str | None = None
    allocated_to: tuple[Mapping[str, str], ...] = ()
    state_words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """A GPU with its processes."""

    index: int | None = None
    uuid: str
    name: str | None = None
    pci_bus_id: str | None = None
    up: bool = True
    down_reason: str | None = None
    advice: str | None = None
    load: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    load_5m: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    load_10m: tuple[tuple[float, float | None], ...] = ()
    temperature_celsius: float | None = None
    faults: tuple[FaultStatus, ...] = ()
    health: tuple[FaultStatus, ...] = ()
    slowed_by: tuple[str, ...] = ()
    xids: tuple[XidStatus, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    mig: tuple[MigStatus, ...] = ()
    allocation: str | None = None
    allocated_to: tuple[Mapping[str, str], ...] = ()
    processes: tuple[ProcessStatus, ...] = ()
    processes_hidden: int = 0
    last_seen: float | None = _absent()
    last_processes: tuple[ProcessStatus, ...] | None = _absent()
    level: str = "none"
    state_words: str = ""
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of the node: of its driver, of GPUs, of a program, or of the exporter."""

    kind: str
    grave: bool = False
    subject: str = ""
    text: str = ""
    advice: str | None = None
    detail: str | None = None
    gain_words: str | None = None
    gpus: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    ratio: float | None = None
    runbook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums and means over the GPUs that answer."""

    gpus: int = 0
    up: int = 0
    load: float | None = None
    load_gpus: int = 0
    mig_load: float | None = None
    mig_devices: int = 0
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """The driver."""

    up: bool = False
    reason: str = "unknown"
    needed: bool = True
    state_words: str = ""
    released_until: float | None = _absent()
    advice: str | None = _absent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a node."""

    answer: str
    level: str = "none"
    problems: tuple[Problem, ...] = ()
    totals: Totals = Totals()
    host: str = ""
    timestamp: float
    version: str | None
    simulated: bool = False
    driver: DriverStatus = DriverStatus()
    failing_collectors: Mapping[str, str] = field(default_factory=dict)
    hook: str | None = None
    gpus: tuple[GpuStatus, ...] = ()
    without_gpu: tuple[ProcessStatus, ...] = ()
    ended: tuple[ProcessStatus, ...] = ()


def of(kind: type[_T], data: object) -> _T:
    """Return an object, decoded if it is still JSON."""
    return data if isinstance(data, kind) else decoded(kind, data)


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
    """Return an object from JSON, perhaps of another version: unknown keys are ignored, and missing ones have their
    defaults. Raises ValueError if that is not possible.
    """
    given = _typed(Mapping, data)
    known = {f: _value(f.hint, given[f.key]) for f in _fields(kind) if f.key in given}
    kept = {f.name: value for f, value in known.items() if value is not None or type(None) in get_args(f.hint)}
    try:
        return kind(**kept)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _value(hint: Any, data: object) -> Any:
    """Return a value of a type, None for null."""
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
