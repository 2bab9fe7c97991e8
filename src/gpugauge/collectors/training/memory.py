"""Memory of training processes on their GPUs and on the host: growth, room and imbalance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpugauge.base.text import whole
from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.training.memory_rows import DEVICES, PARTS, PROCESSES, OfProcess, OnDevice
from gpugauge.metric import Family, LabelValues, families
from gpugauge.snapshot import Section
from gpugauge.verdict.memory.figures import DeviceMemory, rank_ratios, seconds_until_full
from gpugauge.verdict.memory.trend import Growth, Series
from gpugauge.verdict.window import Window, WindowFamilies
from gpugauge.workload.identity import JOB_LABELS

_INTERVAL_SECONDS = 5.0  # between two samples
_TOLERANCE_SECONDS = 0.5  # ticks are 1 s to 5 s apart, and not exactly periodic
_KEPT_SECONDS = 300.0  # for which the samples of a process without series are kept
_STEP = "torch_memory_step_allocated_bytes"
_PEAK = "torch_memory_allocated_peak_bytes"
_HOST = ("gpu_process_anonymous_bytes", "gpu_process_cgroup_memory_bytes")
_CGROUP = "cgroup"
_PARTS = frozenset({"process", "children", _CGROUP})
_MIG_MEMORY = ("total", "used", "reserved")

_FAMILIES = WindowFamilies(
    latest=frozenset(
        {
            *(_STEP, _PEAK, "torch_memory_reserved_bytes", "torch_memory_limit_bytes", "torch_steps_total"),
            *("torch_process_info", "gpu_process_host_info", "training_end_timestamp_seconds", "gpu_memory_free_bytes"),
            *(f"gpu_mig_memory_{kind}_bytes" for kind in _MIG_MEMORY),
            *(*_HOST, "gpu_process_cgroup_memory_limit_bytes"),
        }
    ),
    history=frozenset(),
    subjects=frozenset(),
)


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
    """Reads the sections of the collectors before it, every five seconds."""

    name = "memory"
    metrics = DEVICES + PROCESSES + PARTS

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], _Samples] = {}  # by process, and by GPU or part
        self._hosts: tuple[Family | None, ...] = ()  # families that have been sampled
        self._due = 0.0
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return growth and room of each process; the same section until the next sample."""
        if tick.monotonic < self._due:
            return self._section
        self._due = tick.monotonic + _INTERVAL_SECONDS - _TOLERANCE_SECONDS
        window = Window(_FAMILIES)
        window.add(tick.monotonic, tick.sections)
        devices = self._devices(window, tick.monotonic)
        self._sample_host(window, tick)
        processes = self._processes(window, devices)
        self._forget(tick.monotonic)
        parts = [(key, growth) for key, s in self._samples.items() if (growth := s.series.growth) and key[1] in _PARTS]
        self._section = Section(
            self.name, families(DEVICES, devices) + families(PROCESSES, processes) + families(PARTS, parts)
        )
        return self._section

    def _devices(self, window: Window, now: float) -> list[tuple[LabelValues, OnDevice]]:
        found: list[tuple[LabelValues, OnDevice]] = []
        ended = window.values("training_end_timestamp_seconds", "process")
        for process in sorted(window.values(_PEAK, "process") - ended):
            for labels, _ in window.samples(_PEAK, "process", process):
                key = (process, labels["uuid"])
                kept = self._samples.setdefault(key, _Samples())
                kept.seen = now
                kept.add_peak(window.last(_PEAK, *key))
                allocated, steps = window.last(_STEP, *key), window.last("torch_steps_total", process)
                if allocated is not None and steps is not None:
                    kept.series.add(steps, now, allocated)
                memory = DeviceMemory(
                    _free(window, key[1]),
                    window.last("torch_memory_limit_bytes", *key),
                    window.last("torch_memory_reserved_bytes", *key),
                    kept.peak,
                    allocated,
                    kept.was_reset,
                )
                found.append((key, OnDevice(memory, kept.series.growth)))
        return found

    def _sample_host(self, window: Window, tick: Tick) -> None:
        """Add the values of a new scan of the processes; those without torch are no trainings."""
        by_name = {f.metric.name: f for section in tick.sections for f in section.families if f.metric.name in _HOST}
        scanned = tuple(by_name.get(name) for name in _HOST)
        if all(new is old for new, old in zip(scanned, self._hosts or (None,), strict=False)):
            return
        self._hosts = scanned
        trainings = _with_torch(window)
        for family in filter(None, scanned):
            for labels, value in family.samples:
                if labels[0] in trainings and isinstance(value, (int, float)):
                    part = labels[1] if len(labels) > 1 else _CGROUP
                    kept = self._samples.setdefault((labels[0], part), _Samples())
                    kept.seen = tick.monotonic
                    kept.series.add(tick.monotonic, tick.monotonic, value)

    def _processes(
        self, window: Window, devices: Iterable[tuple[LabelValues, OnDevice]]
    ) -> list[tuple[LabelValues, OfProcess]]:
        found: dict[str, OfProcess] = {}
        for (process, _), on_device in devices:
            found.setdefault(process, OfProcess()).devices.append(on_device.memory)
        for ranks in _ranks(window, found).values():
            for process, ratio in rank_ratios(ranks).items():
                found[process].rank_ratio = ratio
        name = "gpu_process_cgroup_memory_limit_bytes"
        for process in window.values(name, "process"):
            limit, used = window.last(name, process), window.last(_HOST[1], process)
            growth = self._growth(process, _CGROUP)
            if limit is not None and used is not None:
                full = seconds_until_full(max(0.0, limit - used), growth)
                found.setdefault(process, OfProcess()).full_seconds = full
        return [((process,), facts) for process, facts in sorted(found.items())]

    def _growth(self, process: str, part: str) -> Growth | None:
        kept = self._samples.get((process, part))
        return kept.series.growth if kept else None

    def _forget(self, now: float) -> None:
        for key in [key for key, kept in self._samples.items() if now - kept.seen > _KEPT_SECONDS]:
            del self._samples[key]


def _with_torch(window: Window) -> set[str]:
    """Return the processes that report through the hook or have loaded torch."""
    name = "gpu_process_host_info"
    builds = window.values(name, "torch_build") - {""}
    loaded = {labels["process"] for build in builds for labels, _ in window.samples(name, "torch_build", build)}
    return loaded | window.values("torch_process_info", "process")


def _free(window: Window, uuid: str) -> float | None:
    """Return the free memory of a GPU or of a MIG device."""
    free = window.last("gpu_memory_free_bytes", uuid)
    if free is not None or not uuid.startswith("MIG-"):
        return free
    total, used, reserved = (window.last(f"gpu_mig_memory_{kind}_bytes", uuid) for kind in _MIG_MEMORY)
    return None if total is None or used is None else max(0.0, total - used - (reserved or 0.0))


def _ranks(window: Window, processes: dict[str, OfProcess]) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the peaks of the ranks of each job with more than one rank, by process."""
    jobs: dict[tuple[str, ...], dict[str, float]] = {}
    for process, facts in processes.items():
        for labels, _ in window.samples("torch_process_info", "process", process):
            world, job = labels["world_size"], tuple(labels[name] for name in JOB_LABELS[:3])
            # A rank that has made no step has not reached its peak.
            stepped = any(memory.after_step is not None for memory in facts.devices)
            if (whole(world) or 0) > 1 and any(job) and stepped:
                jobs.setdefault(job, {})[process] = sum(memory.peak or 0.0 for memory in facts.devices)
    return jobs
