"""Memory of training processes on their GPUs and on the host: growth, room and imbalance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gpugauge.base.text import whole
from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.training.memory_rows import DEVICES, PARTS, PROCESSES
from gpugauge.metric import LabelValues, families
from gpugauge.node import training
from gpugauge.node.node import Memory, Node, OnDevice
from gpugauge.snapshot import Section
from gpugauge.verdict.memory.trend import (
    DeviceMemory,
    Growth,
    Series,
    least_batch_ratio,
    rank_ratios,
    seconds_until_full,
)
from gpugauge.workload.processfiles import HostProcess

_INTERVAL_SECONDS = 5.0  # between two samples
_TOLERANCE_SECONDS = 0.5  # ticks are 1 s to 5 s apart, and not exactly periodic
_KEPT_SECONDS = 300.0  # for which the samples of a process without series are kept
_CGROUP = "cgroup"
_PARTS = frozenset({"process", "children", _CGROUP})
_OnGpus: TypeAlias = "dict[str, dict[str, DeviceMemory]]"  # by process and uuid


@dataclass(slots=True)
class _Samples:
    """The samples of one series, and what is kept of its peak."""

    series: Series = field(default_factory=Series)
    seen: float = 0.0  # monotonic time
    peak: float | None = None
    last_peak: float = 0.0
    was_reset: bool = False

    def add_peak(self, peak: float | None) -> None:
        if peak is not None:
            self.was_reset |= peak < self.last_peak
            self.last_peak, self.peak = peak, max(peak, self.peak or 0.0)


class MemoryCollector(RegisteredCollector):
    """Reads the parts of the collectors before it, every five seconds."""

    name = "memory"
    metrics = DEVICES + PROCESSES + PARTS

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], _Samples] = {}  # by process, and by GPU or part
        self._hosts: Mapping[str, HostProcess] | None = None  # of the last scan that was sampled
        self._due = 0.0
        self._section, self._memory = Section(self.name, ()), dict[str, Memory]()

    def collect(self, tick: Tick) -> Section:
        """Return growth and room of each process; the same section until the next sample."""
        if tick.monotonic >= self._due:
            self._due = tick.monotonic + _INTERVAL_SECONDS - _TOLERANCE_SECONDS
            self._sample(tick.node)
        tick.node.memory = self._memory
        return self._section

    def _sample(self, node: Node) -> None:
        on_gpus = self._devices(node)
        self._sample_host(node)
        for key in [key for key, kept in self._samples.items() if node.monotonic - kept.seen > _KEPT_SECONDS]:
            del self._samples[key]
        parts = [(key, growth) for key, s in self._samples.items() if key[1] in _PARTS and (growth := s.series.growth)]
        self._memory = self._processes(node, on_gpus, parts)
        processes: list[tuple[LabelValues, Memory]] = [((process,), found) for process, found in self._memory.items()]
        devices = [((*process, uuid), on) for process, memory in processes for uuid, on in memory.devices.items()]
        self._section = Section(
            self.name, families(DEVICES, devices) + families(PROCESSES, processes) + families(PARTS, parts)
        )

    def _devices(self, node: Node) -> _OnGpus:
        found: _OnGpus = {}
        for process, session in node.sessions.items():
            for device in session.snap.devices if session.snap and session.connected else ():
                if device.uuid is None or device.allocated_peak is None:
                    continue
                kept = self._samples.setdefault((process, device.uuid), _Samples())
                kept.seen = node.monotonic
                kept.add_peak(device.allocated_peak)
                steps = training.steps(session)
                if device.step_allocated is not None and steps is not None:
                    kept.series.add(steps, node.monotonic, device.step_allocated)
                found.setdefault(process, {})[device.uuid] = DeviceMemory(
                    _free(node, device.uuid),
                    device.limit,
                    device.reserved,
                    kept.peak,
                    device.step_allocated,
                    kept.was_reset,
                )
        return found

    def _sample_host(self, node: Node) -> None:
        """Add the values of a new scan of the processes; those without torch are no trainings."""
        if node.hosts is self._hosts:
            return
        self._hosts = node.hosts
        for process, host in node.hosts.items():
            if not host.torch and process not in node.sessions:
                continue
            for part, size in {**host.anonymous, _CGROUP: host.cgroup.memory}.items():
                if size is not None:
                    kept = self._samples.setdefault((process, part), _Samples())
                    kept.seen = node.monotonic
                    kept.series.add(node.monotonic, node.monotonic, size)

    def _processes(
        self, node: Node, on_gpus: _OnGpus, parts: Iterable[tuple[tuple[str, str], Growth]]
    ) -> dict[str, Memory]:
        growing: dict[str, dict[str, Growth]] = {}
        for (process, part), growth in parts:
            growing.setdefault(process, {})[part] = growth
        ratios: dict[str, float] = {}
        for ranks in _ranks(node, on_gpus).values():
            ratios |= rank_ratios(ranks)
        full = {}
        for process, host in node.hosts.items():
            limit, used = host.cgroup.memory_limit, host.cgroup.memory
            if limit is not None and used is not None:
                full[process] = seconds_until_full(max(0.0, limit - used), growing.get(process, {}).get(_CGROUP))
        return {
            process: Memory(
                {uuid: self._on_device(process, uuid, memory) for uuid, memory in on_gpus.get(process, {}).items()},
                least_batch_ratio(on_gpus.get(process, {}).values()),
                ratios.get(process),
                full.get(process),
                growing.get(process, {}),
            )
            for process in sorted(on_gpus.keys() | full.keys() | growing.keys())
        }

    def _on_device(self, process: str, uuid: str, memory: DeviceMemory) -> OnDevice:
        growth, headroom = self._samples[process, uuid].series.growth, memory.headroom
        return OnDevice(headroom, memory.fragmentation, growth, seconds_until_full(headroom, growth))


def _free(node: Node, uuid: str) -> float | None:
    free = node.reading(uuid).memory_free_bytes
    if free is not None or not uuid.startswith("MIG-"):
        return free
    instances = (mig for device in node.devices if device.up for mig in device.reading.mig_instances or ())
    mig = next((mig for mig in instances if mig.uuid == uuid), None)
    if mig is None or mig.memory_total_bytes is None or mig.memory_used_bytes is None:
        return None
    return max(0.0, mig.memory_total_bytes - mig.memory_used_bytes - (mig.memory_reserved_bytes or 0))


def _ranks(node: Node, on_gpus: _OnGpus) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the peaks of the ranks of each job with more than one rank, by process."""
    jobs: dict[tuple[str, ...], dict[str, float]] = {}
    for process, memories in on_gpus.items():
        session = node.sessions[process]
        job = session.owner[:3]
        # A rank that has made no step has not reached its peak.
        stepped = any(memory.after_step is not None for memory in memories.values())
        if (whole(session.facts.get("world_size")) or 1) > 1 and any(job) and stepped:
            jobs.setdefault(job, {})[process] = sum(memory.peak or 0.0 for memory in memories.values())
    return jobs
