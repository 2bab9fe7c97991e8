"""What the kernel counts about a simulated training: CPU time, and what its cgroup withholds from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpugauge.simulator.device.pipeline import observe
from gpugauge.simulator.device.world import Process

_TICKS = os.sysconf("SC_CLK_TCK")
_FAULTS = 200.0  # major faults a second of waiting for pages
_PERIOD = 100_000  # microseconds of cpu.max


@dataclass(frozen=True)
class Figures:
    """Until a second of the scenario; in seconds, if nothing else is said."""

    main: float = 0.0  # CPU time of the main thread
    workers: float = 0.0  # of loader workers, which begin anew with every epoch: children that were waited for
    throttled: float = 0.0
    stalled: float = 0.0  # waiting for memory or storage
    faults: int = 0
    cpus: float | None = None  # CPUs' worth of time that the quota allows

    def stat(self) -> dict[int, int]:
        """Return the fields of proc_pid_stat(5), counted from 0, that they are in: majflt, utime, cutime."""
        return {11: self.faults, 13: round(self.main * _TICKS), 15: round(self.workers * _TICKS)}


def figures(process: Process, t: float) -> Figures:
    """Return what is counted of a process; nothing of one without a pipeline."""
    activity = process.activity
    p = activity.pipeline
    if p is None:
        return Figures()
    seen, seconds = observe(p), activity.rhythm.progress(t)
    main = p.host + (0.0 if p.pinned else p.copy) + (0.0 if p.workers else p.load)
    workers = p.load if p.workers else 0.0
    return Figures(
        main=main / seen.step * seconds,
        workers=workers / seen.step * seconds,
        throttled=seen.cpu_throttled * seconds,
        stalled=seen.memory_pressure * seconds,
        faults=round(p.paging * _FAULTS * seconds),
        cpus=(main + workers) / seen.step if p.cpu_quota < 1.0 else None,
    )


def cgroup_folder(root: Path, process: Process) -> Path | None:
    """Return where the cgroup of a process is below `root`; None for a path that would lead elsewhere, or of v1."""
    path = PurePosixPath(process.cgroup)
    return root / path.relative_to("/") if path.is_absolute() and ".." not in path.parts else None


def cgroup_files(found: list[Figures]) -> dict[str, str]:
    """Return the files of a cgroup by the figures of those in it; the one that is held back most speaks for all."""
    throttled, stalled = (max(figure) for figure in zip(*((f.throttled, f.stalled) for f in found), strict=True))
    used = sum(f.main + f.workers for f in found)
    quotas = [f.cpus for f in found if f.cpus is not None]
    quota = f"{round(sum(quotas) * _PERIOD)}" if quotas else "max"
    return {
        "cpu.stat": f"usage_usec {round(used * 1e6)}\nthrottled_usec {round(throttled * 1e6)}\n",
        "cpu.max": f"{quota} {_PERIOD}\n",
        "cpu.pressure": _pressure(throttled),
        "memory.pressure": _pressure(stalled),
        "io.pressure": _pressure(stalled),
    }


def _pressure(seconds: float) -> str:
    total = round(seconds * 1e6)
    return "".join(f"{who} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n" for who in ("some", "full"))
