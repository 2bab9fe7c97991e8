"""Resource usage of the exporter's own processes."""

from __future__ import annotations

from dataclasses import dataclass

from gpugauge.workload.procfs import TICKS_PER_SECOND, Procfs


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, resident bytes, open file descriptors, Unix time of the start; None if it cannot be read."""

    cpu: float
    resident: int
    descriptors: int | None
    started: float | None


def read_usage(pid: int, procfs: Procfs | None = None) -> Usage | None:
    """Return the usage of a process, None if there is no such process."""
    procfs = procfs or Procfs()
    stat = procfs.stat(pid)
    if stat is None:
        return None
    boot = procfs.boot_time()
    try:
        descriptors = sum(1 for _ in (procfs.root / str(pid) / "fd").iterdir())
    except OSError:
        descriptors = None
    started = None if boot is None else boot + stat.start / TICKS_PER_SECOND
    return Usage(stat.cpu, stat.resident, descriptors, started)
