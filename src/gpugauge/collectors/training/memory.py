"""Memory of training processes on their GPUs and on the host: growth, room and imbalance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpugauge.base.text import whole
from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.training.memory_rows import DEVICES, PARTS, PROCESSES, OfProcess, OnDevice
from gpugauge.metric import LabelValues, families
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.snapshot import Section
from gpugauge.verdict.memory.figures import DeviceMemory, rank_ratios, seconds_until_full
from gpugauge.verdict.memory.trend import Series
from gpugauge.workload.processfiles import HostProcess

_INTERVAL_SECONDS = 5.0  # between two samples
_TOLERANCE_SECONDS = 0.5  # ticks are 1 s to 5 s apart, and not exactly periodic
_KEPT_SECONDS = 300.0  # for which the samples of a process without series are kept
_CGROUP = "cgroup"
_PARTS = frozenset({"process", "children", _CGROUP})


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
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return growth and room of each process; the same section until the next sample."""
        if tick.monotonic < self._due:
            return self._section
        self._due = tick.monotonic + _INTERVAL_SECONDS - _TOLERANCE_SECONDS
        devices = self._devices(tick.node)
        self._sample_host(tick.node)
        processes = self._processes(tick.node, devices)
        self._forget(tick.monotonic)
        parts = [(key, growth) for key, s in self._samples.items() if (growth := s.series.growth) and key[1] in _PARTS]
        self._section = Section(
            self.name, families(DEVICES, devices) + families(PROCESSES, processes) + families(PARTS, parts)
        )
        return self._section

    def _devices(self, node: Node) -> list[tuple[LabelValues, OnDevice]]:
        found: list[tuple[LabelValues, OnDevice]] = []
        for process, session in sorted(node.sessions.items()):
            for device in session.snap.devices if session.snap and session.connected else ():
                if device.uuid is None or device.allocated_peak is None:
                    continue
                kept = self._samples.setdefault((process, device.uuid), _Samples())
                kept.seen = node.monotonic
                kept.add_peak(device.allocated_peak)
                steps = training.steps(session)
                if device.step_allocated is not None and steps is not None:
                    kept.series.add(steps, node.monotonic, device.step_allocated)
                memory = DeviceMemory(
                    _free(node, device.uuid),
                    device.limit,
                    device.reserved,
                    kept.peak,
                    device.step_allocated,
                    kept.was_reset,
                )
                found.append(((process, device.uuid), OnDevice(memory, kept.series.growth)))
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
        self, node: Node, devices: Iterable[tuple[LabelValues, OnDevice]]
    ) -> list[tuple[LabelValues, OfProcess]]:
        found: dict[str, OfProcess] = {}
        for (process, _), on_device in devices:
            found.setdefault(process, OfProcess()).devices.append(on_device.memory)
        for ranks in _ranks(node, found).values():
            for process, ratio in rank_ratios(ranks).items():
                found[process].rank_ratio = ratio
        for process, host in node.hosts.items():
            limit, used = host.cgroup.memory_limit, host.cgroup.memory
            if limit is not None and used is not None:
                kept = self._samples.get((process, _CGROUP), _Samples())
                full = seconds_until_full(max(0.0, limit - used), kept.series.growth)
                found.setdefault(process, OfProcess()).full_seconds = full
        return [((process,), facts) for process, facts in sorted(found.items())]

    def _forget(self, now: float) -> None:
        for key in [key for key, kept in self._samples.items() if now - kept.seen > _KEPT_SECONDS]:
            del self._samples[key]


def _free(node: Node, uuid: str) -> float | None:
    free = node.reading(uuid).memory_free_bytes
    if free is not None or not uuid.startswith("MIG-"):
        return free
    instances = (mig for device in node.devices if device.up for mig in device.reading.mig_instances or ())
    mig = next((mig for mig in instances if mig.uuid == uuid), None)
    if mig is None or mig.memory_total_bytes is None or mig.memory_used_bytes is None:
        return None
    return max(0.0, mig.memory_total_bytes - mig.memory_used_bytes - (mig.memory_reserved_bytes or 0))


def _ranks(node: Node, processes: dict[str, OfProcess]) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the peaks of the ranks of each job with more than one rank, by process."""
    jobs: dict[tuple[str, ...], dict[str, float]] = {}
    for process, facts in processes.items():
        session = node.sessions[process]
        job = session.owner[:3]
        # A rank that has made no step has not reached its peak.
        stepped = any(memory.after_step is not None for memory in facts.devices)
        if (whole(session.facts.get("world_size", "")) or 0) > 1 and any(job) and stepped:
            jobs.setdefault(job, {})[process] = sum(memory.peak or 0.0 for memory in facts.devices)
    return jobs
