"""The accounts of the kernel for a simulated training: CPU time, throttling and pressure of its cgroup."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpugauge.simulator.device.pipeline import observe
from gpugauge.simulator.device.world import Process

_TICKS = os.sysconf("SC_CLK_TCK")
_MAJOR_FAULTS_PER_SECOND = 200.0  # while it waits for pages
_QUOTA_PERIOD_MICROSECONDS = 100_000  # in cpu.max


@dataclass(frozen=True)
class Figures:
    """Totals until a second of the scenario, in seconds unless a comment has another unit."""

    main: float = 0.0  # CPU time of the main thread
    workers: float = 0.0  # CPU time of loader workers, as ended children: they start again in every epoch
    throttled: float = 0.0
    stalled: float = 0.0  # waits for memory or storage
    faults: int = 0
    cpus: float | None = None  # the CPU quota

    def stat(self) -> dict[int, int]:
        """Return the fields majflt, utime and cutime of proc_pid_stat(5) by position, counted from 0."""
        return {11: self.faults, 13: round(self.main * _TICKS), 15: round(self.workers * _TICKS)}


def figures(process: Process, t: float) -> Figures:
    """Return the totals of a process; zeros for one without a pipeline."""
    activity = process.activity
    p = activity.pipeline
    if p is None:
        return Figures()
    observed, seconds = observe(p), activity.rhythm.progress(t)
    return Figures(
        main=p.thread_cpu / observed.step * seconds,
        workers=(p.cpu_seconds - p.thread_cpu) / observed.step * seconds,
        throttled=observed.cpu_throttled * seconds,
        stalled=observed.memory_pressure * seconds,
        faults=round(p.paging * _MAJOR_FAULTS_PER_SECOND * seconds),
        cpus=p.cpu_seconds / observed.step if p.cpu_quota < 1.0 else None,
    )


def cgroup_folder(root: Path, process: Process) -> Path | None:
    """Return the folder of the cgroup of a process below `root`; None for a path out of `root`, and for cgroup v1."""
    path = PurePosixPath(process.cgroup)
    return root / path.relative_to("/") if path.is_absolute() and ".." not in path.parts else None


def cgroup_files(found: list[Figures]) -> dict[str, str]:
    """Return the files of a cgroup for the totals of its processes. Throttling and pressure are the highest of them."""
    throttled, stalled = (max(figure) for figure in zip(*((f.throttled, f.stalled) for f in found), strict=True))
    used = sum(f.main + f.workers for f in found)
    quotas = [f.cpus for f in found if f.cpus is not None]
    quota = f"{round(sum(quotas) * _QUOTA_PERIOD_MICROSECONDS)}" if quotas else "max"
    return {
        "cpu.stat": f"usage_usec {round(used * 1e6)}\nthrottled_usec {round(throttled * 1e6)}\n",
        "cpu.max": f"{quota} {_QUOTA_PERIOD_MICROSECONDS}\n",
        "cpu.pressure": _pressure(throttled),
        "memory.pressure": _pressure(stalled),
        "io.pressure": _pressure(stalled),
    }


def _pressure(seconds: float) -> str:
    total = round(seconds * 1e6)
    return "".join(f"{share} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n" for share in ("some", "full"))
