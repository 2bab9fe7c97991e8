"""What the hooks tell from inside the training processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpugauge.collectors.base import Tick
from gpugauge.collectors.training import torchfacts
from gpugauge.metric import (
    BYTES,
    NONE,
    SECONDS,
    TIMESTAMP,
    Family,
    HistogramValue,
    LabelValues,
    Metric,
    Table,
    families,
)
from gpugauge.sessions.session import Counters, Session
from gpugauge.snapshot import Section
from gpugauge.wire import messages as wire
from gpugauge.workload.procfs import process_hash

_process = Table("process")
_hook = Table()

_FACTS = ("command", "python", "torch", "cuda", "hip", "rank", "local_rank", "world_size", "run_id")

# Of the hook's powers of two those that tell training steps apart: 1 ms to 2 minutes.
_FIRST_POWER, _LAST_POWER = -10, 7
STEP_BUCKETS = tuple(2.0**power for power in range(_FIRST_POWER, _LAST_POWER + 1))


def _info(session: Session) -> dict[tuple[str, ...], float]:
    pid = str(session.peer_pid) if session.peer_pid > 0 else ""
    own = str(session.hello.pid) if session.hello.pid is not None else ""
    facts = session.facts
    return {(pid, own, *(facts.get(name, "") for name in _FACTS)): 1}


def _steps(session: Session) -> wire.Progress | None:
    return session.snap.steps if session.snap else None


def _batches(session: Session) -> wire.Progress | None:
    return session.snap.batches if session.snap else None


def _count(progress: wire.Progress | None) -> int | None:
    return progress.count if progress else None


def _step_durations(session: Session) -> HistogramValue | None:
    steps = _steps(session)
    if steps is None:
        return None
    first = _FIRST_POWER - wire.LOG2_FIRST
    counts = [sum(steps.log2[: first + 1])]
    for count in steps.log2[first + 1 : first + len(STEP_BUCKETS)]:
        counts.append(counts[-1] + count)
    counts += [counts[-1]] * (len(STEP_BUCKETS) - len(counts))
    return HistogramValue((*counts, sum(steps.log2)), steps.seconds)


def _step_source(session: Session) -> dict[str, int] | None:
    source = session.snap.step_source if session.snap else None
    # Hooks before version 1.1 of the protocol count by nothing else, and do not say so.
    return {source if source in wire.STEP_SOURCES else "optimizer": 1} if _count(_steps(session)) else None


def _by_uuid(read: Callable[[wire.Device], int | None]) -> Callable[[Session], dict[str, int] | None]:
    """Return a reader of one figure of every device whose uuid is known."""

    def values(session: Session) -> dict[str, int] | None:
        devices = session.snap.devices if session.snap else ()
        return {d.uuid: value for d in devices if d.uuid is not None and (value := read(d)) is not None} or None

    return values


def _parameter_bytes(session: Session) -> dict[str, int] | None:
    result: dict[str, int] = {}
    for entry in session.snap.parameters if session.snap else ():
        result[entry.device] = result.get(entry.device, 0) + entry.bytes
    return result or None


# What is true only while the process lives.
LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "torch_memory_allocated_bytes",
        "Memory of tensors in torch's caching allocator.",
        BYTES,
        _by_uuid(lambda d: d.allocated),
        "uuid",
        source="torch.cuda.memory_stats allocated_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_allocated_peak_bytes",
        "Most memory of tensors at once since the process began or the program reset the peak.",
        BYTES,
        _by_uuid(lambda d: d.allocated_peak),
        "uuid",
        source="torch.cuda.memory_stats allocated_bytes.all.peak",
    ),
    _process.gauge(
        "torch_memory_reserved_bytes",
        "Memory that torch's caching allocator holds of the device, used or not.",
        BYTES,
        _by_uuid(lambda d: d.reserved),
        "uuid",
        source="torch.cuda.memory_stats reserved_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_active_bytes",
        "Memory of blocks that are in use or wait for another stream.",
        BYTES,
        _by_uuid(lambda d: d.active),
        "uuid",
        source="torch.cuda.memory_stats active_bytes.all.current",
    ),
    _process.gauge(
        "torch_memory_inactive_split_bytes",
        "Free memory in split blocks, which cannot go back to the device: fragmentation.",
        BYTES,
        _by_uuid(lambda d: d.inactive_split),
        "uuid",
        source="torch.cuda.memory_stats inactive_split_bytes.all.current",
    ),
    _process.gauge(
        "torch_parameter_bytes",
        "Parameters that optimizers hold, by the device they live on, as torch names it.",
        BYTES,
        _parameter_bytes,
        "device",
        source="Optimizer.param_groups",
    ),
    _process.gauge(
        "torch_step_source",
        "What the steps are counted by; always 1, absent before the first step.",
        NONE,
        _step_source,
        "source",
    ),
)

# What is scraped for a while after the process has ended, so that the last interval is not lost.
LASTING: tuple[Metric, ...] = (
    _process.gauge(
        "torch_process_info",
        "A process that trains with torch, as it tells about itself (pid: as this machine sees it); always 1.",
        NONE,
        _info,
        *("pid", "container_pid", *_FACTS),
    ),
    _process.counter(
        "torch_steps_total",
        "Training steps, counted as torch_step_source says; of several optimizers the most frequent counts.",
        NONE,
        lambda s: _count(_steps(s)),
        source="torch.optim.optimizer.register_optimizer_step_post_hook",
    ),
    _process.histogram(
        "torch_step_duration_seconds",
        "Time from one optimizer step to the next.",
        SECONDS,
        _step_durations,
        STEP_BUCKETS,
    ),
    _process.counter(
        "torch_batches_total",
        "Batches that data loaders delivered.",
        NONE,
        lambda s: _count(_batches(s)),
        source="torch.utils.data.DataLoader",
    ),
    _process.counter(
        "torch_data_wait_seconds_total",
        "Time that the program waited for batches; the GPU may have had work meanwhile.",
        SECONDS,
        lambda s: b.seconds if (b := _batches(s)) else None,
        source="torch.utils.data.DataLoader",
    ),
    _process.counter(
        "torch_memory_alloc_retries_total",
        "Allocations that succeeded only after the cache was given back.",
        NONE,
        _by_uuid(lambda d: d.retries),
        "uuid",
        source="torch.cuda.memory_stats num_alloc_retries",
    ),
    _process.counter(
        "torch_memory_ooms_total",
        "Out-of-memory errors, caught ones included.",
        NONE,
        _by_uuid(lambda d: d.ooms),
        "uuid",
        source="torch.cuda.memory_stats num_ooms",
    ),
    _process.gauge(
        "training_start_timestamp_seconds",
        "Unix time of the first step, batch or watch() of the process.",
        TIMESTAMP,
        lambda s: s.hello.started,
    ),
    _process.gauge(
        "training_last_step_timestamp_seconds",
        "Unix time of the last optimizer step.",
        TIMESTAMP,
        lambda s: p.last if (p := _steps(s)) else None,
    ),
    _process.gauge(
        "training_end_timestamp_seconds",
        "Unix time at which the process ended or was lost; absent while it lives.",
        TIMESTAMP,
        lambda s: s.ended_at,
    ),
    _process.counter(
        "gpugauge_hook_errors_total",
        "Errors of the hook itself inside the process; at 10 it switches itself off.",
        NONE,
        lambda s: s.snap.errors if s.snap else None,
    ),
)


@dataclass(frozen=True, slots=True)
class _Ear:
    connected: int
    counters: Counters


EAR: tuple[Metric, ...] = (
    _hook.gauge(
        "gpugauge_hook_sessions",
        "Training processes that are connected now.",
        NONE,
        lambda e: e.connected,
    ),
    _hook.counter(
        "gpugauge_hook_rejected_total",
        "Connections to the hook's socket that were closed for what came over them, or for being too many.",
        NONE,
        lambda e: e.counters.rejected,
        "reason",
    ),
    _hook.counter(
        "gpugauge_trainings_ended_total",
        "Training processes that ended; killed means without a goodbye: by a signal, a crash or os._exit.",
        NONE,
        lambda e: e.counters.ended,
        "reason",
    ),
)


class Heard(Protocol):
    """Where sessions come from: the hook's socket, or the simulator."""

    def view(self) -> tuple[Session, ...]:
        """See sessions.Sessions."""

    def counters(self) -> Counters:
        """See sessions.Sessions."""


class TrainingCollector:
    """Rows by process. `process_id` gives the `process` label of a session whose pid can be seen, otherwise None."""

    name = "training"
    metrics = LIVE + torchfacts.LIVE + LASTING + torchfacts.LASTING + EAR

    def __init__(self, sessions: Heard, process_id: Callable[[Session], str | None]) -> None:
        self._sessions = sessions
        self._process_id = process_id
        self._labels: dict[str, str] = {}
        self._seen: tuple[Sequence[Session], Counters] | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:  # noqa: ARG002 - what the hooks tell does not depend on the time
        """Return the sessions' families; raises SessionsError when nobody reads the socket any more."""
        view, counters = self._sessions.view(), self._sessions.counters()
        if self._seen is None or self._seen[0] is not view or self._seen[1] is not counters:
            self._seen = (view, counters)
            self._section = Section(self.name, self._families(view, counters))
        return self._section

    def _families(self, view: Sequence[Session], counters: Counters) -> tuple[Family, ...]:
        self._labels = {session.hello.session: self._label(session) for session in view}
        # A process that began a second session (exec keeps the pid) is shown once, with the last of them.
        subjects = {self._labels[session.hello.session]: session for session in view}
        lasting: list[tuple[LabelValues, Session]] = [((label,), session) for label, session in subjects.items()]
        live = [subject for subject in lasting if subject[1].connected]
        ear = _Ear(sum(session.connected for session in view), counters)
        return (
            families(LIVE + torchfacts.LIVE, live)
            + families(LASTING + torchfacts.LASTING, lasting)
            + families(EAR, [((), ear)])
        )

    def _label(self, session: Session) -> str:
        """Return the session's `process` label, fixed when it is first seen: later the pid may be another's."""
        known = self._labels.get(session.hello.session)
        if known is not None:
            return known
        seen = self._process_id(session) if session.connected and session.peer_pid > 0 else None
        return seen or process_hash(session.hello.session)
