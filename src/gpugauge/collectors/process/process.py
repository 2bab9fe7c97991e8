"""Which process holds and uses what on which GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.background import Background
from gpugauge.collectors.process.busysplit import UNCERTAIN, BusySplit, Rows
from gpugauge.collectors.process.deviceprocesses import KINDS, OTHER, DeviceProcesses, Use, merge
from gpugauge.driver.api import Device
from gpugauge.metric import BYTES, NONE, SECONDS, TIMESTAMP, Family, LabelValues, Metric, Table, families
from gpugauge.snapshot import Section
from gpugauge.workload.identity import LABELS, Workload
from gpugauge.workload.owners import Owner, Owners
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

_REMEMBERED = 60.0  # seconds for which a process is known that nothing is shown of
_AGAIN = 60.0  # seconds after which workloads are asked about the same processes once more
_LISTS = "nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses_v3"
_SAMPLES = "nvmlDeviceGetProcessUtilization"

_use = Table("process", "uuid")
_process = Table("process")
_device = Table("uuid")


@dataclass(slots=True)
class _Identity:
    """What describes a process, kept as long as a counter of it is shown."""

    owner: Owner
    kind: str = ""
    container_pid: int | None = None
    workload: Workload = field(default_factory=Workload)
    started_at: float | None = None
    seen: float = 0.0

    def info(self) -> dict[tuple[str, ...], float]:
        inner = "" if self.container_pid is None else str(self.container_pid)
        return {(str(self.owner.pid), inner, self.kind, *self.workload.labels()): 1}


USES: tuple[Metric, ...] = (
    _use.gauge(
        "gpu_process_memory_used_bytes",
        'Device memory that the process holds on the GPU; process="other" is the sum of those that are not shown.',
        BYTES,
        lambda u: u.memory,
        source=_LISTS,
    ),
    _use.counter(
        "gpu_process_busy_seconds_total",
        "Time in which the process kept the GPU busy; those of a GPU never add up to more than its own "
        'gpu_busy_seconds_total{engine="gpu"}. Stays for some minutes after the process has ended.',
        SECONDS,
        lambda u: u.busy,
        source=_SAMPLES,
    ),
)
PROCESSES: tuple[Metric, ...] = (
    _process.gauge(
        "gpu_process_info",
        "A process that uses a GPU, to be joined by process; always 1. Workload labels are empty where unknown.",
        NONE,
        _Identity.info,
        *("pid", "container_pid", "kind", *LABELS),
        source=f"{_LISTS}, /proc",
    ),
    _process.gauge(
        "gpu_process_start_timestamp_seconds",
        "Unix time at which the process began.",
        TIMESTAMP,
        lambda i: i.started_at,
        source="/proc/PID/stat",
    ),
)
DEVICES: tuple[Metric, ...] = (
    _device.counter(
        "gpu_unaccounted_busy_seconds_total",
        "Time in which the GPU was busy and that no process can be given: it had just ended or begun, its pid cannot "
        "be seen or may have been another's, or the driver did not name it.",
        SECONDS,
        lambda c: c.split.unaccounted if c.split else None,
        source=_SAMPLES,
    ),
    _device.gauge(
        "gpu_process_hidden",
        'Processes that are not shown one by one but as process="other".',
        NONE,
        lambda c: len(c.here) - len(c.shown) if c.listed else None,
        source=_LISTS,
    ),
)


class ProcessCollector:
    """Rows by (process, uuid) and by process, new with every answer about processes.

    `device_busy` returns a GPU's own busy seconds so far, None if they are not counted; it is asked after they were
    brought up to the same tick.
    """

    name = "process"
    metrics = USES + PROCESSES + DEVICES

    def __init__(
        self,
        procfs: Procfs,
        device_busy: Callable[[str], float | None],
        workloads: Workloads | None = None,
        max_per_device: int = 128,
        linger_seconds: float = 300.0,
    ) -> None:
        self._owners = Owners(procfs)
        self._device_busy, self._workloads = device_busy, workloads
        self.max_per_device, self._linger = max_per_device, linger_seconds
        self._states: dict[str, DeviceProcesses] = {}
        self._identities: dict[str, _Identity] = {}
        self._now = 0.0
        self._worker_starts = 0
        self._question: tuple[dict[str, list[str]], object] = ({}, None)
        self._asked = 0.0
        self._asking: Background[list[tuple[str, Workload, int | None]]] = Background("workloads")
        self._described: tuple[Set[str], tuple[Family, ...]] = (frozenset(), ())
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return what each process holds and used; the same section until there is something new."""
        self._now = tick.monotonic
        self._owners.begin(self._now)
        for device in tick.driver.devices:
            self._states.setdefault(device.uuid, DeviceProcesses())
        used, listed = self._drain(tick), self._list(tick)
        self._owners.end()
        # While a GPU is not seen nobody knows which of its processes have left: a counter would begin again at 0.
        left = [
            self._states[device.uuid].forget(tick.monotonic, self._linger, self.max_per_device)
            for device in tick.driver.devices
            if device.up
        ]
        if listed:
            self._describe(tick.driver.devices)
        answered = self._take_answers()
        if used or listed or answered or any(left):
            self._section = Section(self.name, self._families(tick.driver.devices, anew=listed or answered))
        return self._section

    def _drain(self, tick: Tick) -> bool:
        """Take the samples of use; tell whether there were any."""
        if tick.driver.worker_starts != self._worker_starts:
            self._worker_starts = tick.driver.worker_starts
            for state in self._states.values():
                if state.split:
                    state.split.restart()
        batches: dict[str, list[Rows]] = {}
        came: dict[str, float] = {}
        for reply in tick.replies:
            if reply.uuid in self._states and "process" in reply.samples:
                batches.setdefault(reply.uuid, []).append(reply.samples["process"])
                came[reply.uuid] = reply.received or tick.monotonic
        for uuid, rows in batches.items():
            state = self._states[uuid]
            state.split = state.split or BusySplit()
            given = state.split.drain(rows, came[uuid], self._device_busy(uuid), self._owner)
            state.credit(given, tick.monotonic, self.max_per_device)
        return bool(batches)

    def _owner(self, pid: int, since: float) -> str | None:
        """Name the process that has had the pid all the time since then."""
        owner = self._owners.of(pid)
        if owner.since is None:
            return None
        if owner.since > since:
            return UNCERTAIN
        self._identity(owner)
        return owner.process

    def _identity(self, owner: Owner) -> _Identity:
        known = self._identities.get(owner.process)
        if known is None:
            known = self._identities[owner.process] = _Identity(owner, started_at=self._owners.started_at(owner))
        known.seen = self._now
        return known

    def _list(self, tick: Tick) -> bool:
        """Take the lists of processes that are new; tell whether there are any."""
        changed = False
        for device in tick.driver.devices:
            state, reading = self._states[device.uuid], (device.up, device.generations.get("processes", 0))
            if state.reading == reading:
                continue
            changed, state.reading, state.listed = True, reading, device.reading.processes is not None
            uses: dict[str, Use] = {}
            for listed in merge(device.reading.processes or ()):
                identity = self._identity(self._owners.of(listed.pid))
                identity.kind = min(listed.kind, identity.kind or listed.kind, key=KINDS.index)
                uses[identity.owner.process] = Use(listed.used_memory_bytes, seen=tick.monotonic)
            state.take_list(uses, tick.monotonic, self.max_per_device)
        return changed

    def _describe(self, devices: Sequence[Device]) -> None:
        """Ask who the processes on the GPUs are, and forget those that nothing is shown of any more."""
        names: dict[str, list[str]] = {}
        for device in devices:
            minor = device.reading.minor_number
            for process in self._states[device.uuid].here:
                names.setdefault(process, []).extend([device.uuid] + ([] if minor is None else [f"nvidia{minor}"]))
        lasting = names.keys() | {process for state in self._states.values() for process in state.gone}
        for process in [
            p for p, i in self._identities.items() if p not in lasting and self._now - i.seen > _REMEMBERED
        ]:
            del self._identities[process]
        workloads = self._workloads
        if workloads is None or self._asking.running is not None:
            return
        # Answers are others when the processes are, or when the orchestrators told something new.
        given, (before, given_before) = workloads.allocations(), self._question
        if names == before and given is given_before and self._now - self._asked < _AGAIN:
            return
        self._question, self._asked = (names, given), self._now
        identities = [(self._identities[process], tuple(on)) for process, on in names.items()]
        self._asking.start(lambda: [_who(workloads, identity.owner, on) for identity, on in identities])

    def _take_answers(self) -> bool:
        """Put in what was found out about processes; tell whether that is new."""
        changed = False
        for process, workload, container_pid in self._asking.take() or ():
            identity = self._identities.get(process)
            # Of a process that has just ended nothing is known any more.
            if identity is not None and workload != Workload() and identity.workload != workload:
                identity.workload, identity.container_pid, changed = workload, container_pid, True
        return changed

    def _families(self, devices: Sequence[Device], *, anew: bool) -> tuple[Family, ...]:
        """Return everything; what describes the processes is made anew only if asked for, or if they are others."""
        uses = [((process, uuid), use) for uuid, state in self._states.items() for process, use in state.rows()]
        names = dict.fromkeys(process for (process, _), _ in uses)
        names.pop(OTHER, None)
        if anew or names.keys() != self._described[0]:
            described: list[tuple[LabelValues, _Identity]] = [((name,), self._identities[name]) for name in names]
            self._described = (names.keys(), families(PROCESSES, described))
        states: list[tuple[LabelValues, DeviceProcesses]] = [((d.uuid,), self._states[d.uuid]) for d in devices if d.up]
        return families(USES, uses) + self._described[1] + families(DEVICES, states)


def _who(workloads: Workloads, owner: Owner, devices: tuple[str, ...]) -> tuple[str, Workload, int | None]:
    """Ask about one process; runs in the background. A pid that cannot be seen is asked for as none at all: here it may
    be the number of another process.
    """
    pid = owner.pid if owner.start is not None else 0
    workload = workloads.of(pid, devices, start=owner.start)
    return owner.process, workload, workloads.container_pid(pid, start=owner.start) if pid else None
