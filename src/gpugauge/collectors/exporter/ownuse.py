"""What a process of our own uses, from its files in /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpugauge.workload.owners import boot_time
from gpugauge.workload.procfs import Procfs

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Use:
    """CPU seconds, resident bytes, open descriptors, and the Unix time of the start; None is what cannot be read."""

    cpu: float
    resident: int
    descriptors: int | None
    started: float | None


def use(pid: int, procfs: Procfs | None = None) -> Use | None:
    """Look at a process (proc_pid_stat(5), proc_pid_fd(5)); None if there is no such process."""
    procfs = procfs or Procfs()
    try:
        stat = procfs.read(pid, "stat", 4096)
        # The command may hold spaces and parentheses; the fields after the last one do not.
        fields = stat[stat.rindex(b")") + 2 :].split()
        cpu, start, pages = int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21])
    except (OSError, ValueError, IndexError):
        return None
    boot = boot_time(procfs.root)
    try:
        descriptors = sum(1 for _ in (procfs.root / str(pid) / "fd").iterdir())
    except OSError:
        descriptors = None
    return Use(cpu / _TICKS, pages * _PAGE, descriptors, None if boot is None else boot + start / _TICKS)
