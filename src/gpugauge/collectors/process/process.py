"""Processes on GPUs: memory and busy seconds by process and GPU, and the identity of each process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.collectors.process.busy_split import UNCERTAIN, BusySplit, Rows
from gpugauge.collectors.process.device_processes import KINDS, OTHER, DeviceProcesses, Use, merge, on_mig
from gpugauge.driver.api import Device
from gpugauge.metric import Family, Metric, Table, families
from gpugauge.node import node
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Section
from gpugauge.workload.identity import LABELS, device_names
from gpugauge.workload.pids import PidOwner, PidTable
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.registry import Identity, Registry, Want

_IDENTITY_SECONDS = 60.0  # for which the identity of a process without a series is kept
_LISTS = "nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses_v3"
_SAMPLES = "nvmlDeviceGetProcessUtilization"

_use = Table[Use]("process", "uuid", source=_LISTS)
_used = Table[int]("process", "uuid", source=_LISTS)
_process = Table["_Identity"]("process")
_device = Table[DeviceProcesses]("uuid")


@dataclass(slots=True)
class _Identity:
    owner: PidOwner
    kind: str = ""
    who: Identity = field(default_factory=Identity)
    started_at: float | None = None
    seen: float = 0.0

    def info(self) -> dict[tuple[str, ...], float]:
        inner = "" if self.who.container_pid is None else str(self.who.container_pid)
        return {(str(self.owner.pid), inner, self.kind, *self.who.workload): 1}


USES: tuple[Metric, ...] = (
    MEMORY := _use.gauge(
        "gpu_process_memory_used_bytes",
        'Device memory that the process holds on the GPU; process="other" is the sum of the processes without '
        "series of their own (gpu_process_hidden).",
        lambda u: u.memory,
    ),
    _use.counter(
        "gpu_process_busy_seconds_total",
        "Time in which the process kept the GPU busy. The sum over the processes of a GPU never exceeds its "
        'gpu_busy_seconds_total{engine="gpu"}. The series is kept for some minutes after the process has ended.',
        lambda u: u.busy,
        source=_SAMPLES,
    ),
)
ON_MIG: tuple[Metric, ...] = (
    _used.gauge(
        "gpu_mig_process_memory_used_bytes",
        "Device memory that the process holds on the MIG device; a part of gpu_process_memory_used_bytes of its GPU.",
        lambda used: used,
        devices="with MIG",
    ),
)
PROCESSES: tuple[Metric, ...] = (
    INFO := _process.gauge(
        "gpu_process_info",
        "Identity of a process that uses a GPU, to be joined on process; always 1. Unknown workload labels are empty.",
        _Identity.info,
        *("pid", "container_pid", "kind", *LABELS),
        source=f"{_LISTS}, /proc",
    ),
    START := _process.gauge(
        "gpu_process_start_timestamp_seconds",
        "Unix time at which the process started.",
        lambda i: i.started_at,
        source="/proc/PID/stat",
    ),
)
DEVICES: tuple[Metric, ...] = (
    _device.counter(
        "gpu_unaccounted_busy_seconds_total",
        "Busy time of the GPU that cannot be attributed to a process. The process had just started or ended, its pid "
        "is not visible or may have been reused, or the driver did not report it.",
        lambda c: c.unaccounted,
        source=_SAMPLES,
    ),
    _device.gauge(
        "gpu_process_hidden",
        'Processes on the GPU that are not exported one by one but summed up as process="other".',
        lambda c: c.hidden,
        source=_LISTS,
    ),
)


_Parts: TypeAlias = (
    "tuple[Mapping[tuple[str, str], node.Use], Mapping[str, node.Identity], Mapping[str, float | None], "
    "Mapping[str, int], Collection[tuple[str, str]]]"
)


class ProcessCollector(RegisteredCollector):
    """Rows by (process, uuid) and by process. `device_busy` returns the busy seconds of a GPU, None if not counted."""

    name = "process"
    metrics = USES + ON_MIG + PROCESSES + DEVICES

    def __init__(
        self,
        procfs: Procfs,
        device_busy: Callable[[str], float | None],
        registry: Registry | None = None,
        max_per_device: int = 128,
        linger_seconds: float = 300.0,
    ) -> None:
        self._pids = PidTable(procfs)
        self._device_busy, self._registry = device_busy, registry
        self.max_per_device, self._linger = max_per_device, linger_seconds
        self._states: dict[str, DeviceProcesses] = {}
        self._identities: dict[str, _Identity] = {}
        self._now = 0.0
        self._worker_starts = 0
        self._shown: Mapping[str, node.Identity] = {}
        self._process_families: tuple[Family, ...] = ()  # of these
        self._parts: _Parts = ({}, {}, {}, {}, ())
        self._section = Section(self.name, ())

    @classmethod
    def create(cls, sources: Sources) -> ProcessCollector:
        """Return a collector that shares out the busy seconds that the utilization collector counts."""
        return cls(sources.procfs, sources.collector(UtilizationCollector).busy_seconds, sources.workloads.registry)

    def configure(self, settings: Settings) -> None:
        """Apply `process.max_per_device`."""
        self.max_per_device = settings.process.max_per_device

    def collect(self, tick: Tick) -> Section:
        """Return memory and busy seconds of each process; the same section until there is something new."""
        self._now = tick.monotonic
        self._pids.begin(self._now)
        for device in tick.driver.devices:
            self._states.setdefault(device.uuid, DeviceProcesses())
        used, listed = self._add_samples(tick), self._add_lists(tick)
        # The processes of a GPU that is down may still be there: an expired counter would start again at 0.
        expired = [
            self._states[device.uuid].expire(tick.monotonic, self._linger, self.max_per_device)
            for device in tick.driver.devices
            if device.up
        ]
        if listed:
            self._want(tick.driver.devices)
        named = self._take_names()
        if used or listed or named or any(expired):
            self._section = Section(self.name, self._families(tick.driver.devices, changed=listed or named))
        on = tick.node
        on.uses, on.identities, on.unaccounted, on.hidden, on.on_mig = self._parts
        return self._section

    def _add_samples(self, tick: Tick) -> bool:
        if tick.driver.worker_starts != self._worker_starts:
            self._worker_starts = tick.driver.worker_starts
            for state in self._states.values():
                if state.split:
                    state.split.restart()
        batches: dict[str, list[Rows]] = {}
        received: dict[str, float] = {}
        for reply in tick.replies:
            if reply.uuid in self._states and "process" in reply.samples:
                batches.setdefault(reply.uuid, []).append(reply.samples["process"])
                received[reply.uuid] = reply.received or tick.monotonic
        for uuid, rows in batches.items():
            state = self._states[uuid]
            state.split = state.split or BusySplit()
            given = state.split.drain(rows, received[uuid], self._device_busy(uuid), self._owner)
            state.add_busy(given, tick.monotonic, self.max_per_device)
        return bool(batches)

    def _owner(self, pid: int, since: float) -> str | None:
        """Return the process that has had the pid since `since`. See `BusySplit.drain`."""
        owner = self._pids.owner(pid)
        if owner.since is None:
            return None
        if owner.since > since:
            return UNCERTAIN
        self._identity(owner)
        return owner.process

    def _identity(self, owner: PidOwner) -> _Identity:
        known = self._identities.get(owner.process)
        if known is None:
            known = self._identities[owner.process] = _Identity(owner, started_at=self._pids.started_at(owner))
        known.seen = self._now
        return known

    def _add_lists(self, tick: Tick) -> bool:
        changed = False
        for device in tick.driver.devices:
            state, reading = self._states[device.uuid], (device.up, device.generations.get("processes", 0))
            if state.reading == reading:
                continue
            changed, state.reading, state.listed = True, reading, device.reading.processes is not None
            uses: dict[str, Use] = {}
            for listed in merge(device.reading.processes or ()):
                identity = self._identity(self._pids.owner(listed.pid))
                identity.kind = min(listed.kind, identity.kind or listed.kind, key=KINDS.index)
                uses[identity.owner.process] = Use(listed.used_memory_bytes, seen=tick.monotonic)
            state.set_list(uses, tick.monotonic, self.max_per_device)
            state.on_mig = on_mig(device.reading, lambda pid: self._pids.owner(pid).process)
        return changed

    def _want(self, devices: Sequence[Device]) -> None:
        """Ask for the processes on the GPUs, and drop identities without a series."""
        names: dict[str, list[tuple[str, ...]]] = {}
        for device in devices:
            state = self._states[device.uuid]
            minor, address = device.reading.minor_number, device.reading.pci_bus_id
            parts = {process for process, _ in state.on_mig}
            for process in state.present:
                if process not in parts:
                    names.setdefault(process, []).append(device_names(device.uuid, minor=minor, bus_id=address))
            for (process, uuid), use in state.on_mig.items():
                names.setdefault(process, []).append(device_names(uuid, minor=minor, gpu_instance=use.instance))
        lasting = names.keys() | {process for state in self._states.values() for process in state.gone}
        for process in [
            p for p, i in self._identities.items() if p not in lasting and self._now - i.seen > _IDENTITY_SECONDS
        ]:
            del self._identities[process]
        if self._registry:
            owners = {process: self._identities[process].owner for process in names}
            # In this pid namespace, the number of a pid that /proc does not show may belong to another process.
            wants = {p: Want(0 if o.start is None else o.pid, o.start, tuple(names[p])) for p, o in owners.items()}
            self._registry.want(self.name, wants)

    def _take_names(self) -> bool:
        """Note who the processes are; return whether any is another."""
        changed = False
        for process, identity in self._identities.items():
            who = (self._registry.get(process) if self._registry else None) or identity.who
            changed |= who is not identity.who
            identity.who = who
        return changed

    def _families(self, devices: Sequence[Device], *, changed: bool) -> tuple[Family, ...]:
        """Return all families; those of PROCESSES are reused unless `changed`, or the processes are others."""
        uses = [((process, uuid), use) for uuid, state in self._states.items() for process, use in state.rows()]
        parts = [
            (key, use.memory)
            for state in self._states.values()
            for key, use in state.on_mig.items()
            if key[0] in state.shown and use.memory is not None
        ]
        names = dict.fromkeys(process for (process, _), _ in uses)
        names.pop(OTHER, None)
        if changed or names.keys() != self._shown.keys():
            identities = [(name, self._identities[name]) for name in names]
            self._shown = {
                name: node.Identity(i.owner.pid, i.kind, i.who.workload, i.started_at) for name, i in identities
            }
            self._process_families = families(PROCESSES, [((name,), identity) for name, identity in identities])
        states = [((d.uuid,), self._states[d.uuid]) for d in devices if d.up]
        self._parts = (
            {key: node.Use(use.memory, use.busy) for key, use in uses},
            self._shown,
            {uuid: state.unaccounted for (uuid,), state in states},
            {uuid: hidden for (uuid,), state in states if (hidden := state.hidden) is not None},
            [key for key, _ in parts],
        )
        return families(USES, uses) + families(ON_MIG, parts) + self._process_families + families(DEVICES, states)
