"""The time at which a session began, checked: a program can replace the clock that its hook reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpugauge.sessions.ends import since_boot

# Start times in /proc are in ticks of 10 ms, and the two clocks here are not read at one instant.
_TOLERANCE_SECONDS = 1.0


def checked_start(claimed: float | None, pid: int) -> float | None:
    """Return the Unix time that the process claims if it lies between its start and now; otherwise its start by
    /proc/PID/stat, or now if that is unknown. None without a claim.
    """
    if claimed is None:
        return None
    now = time.time()
    age = _age(pid)
    begin = None if age is None else now - age
    earliest = 0.0 if begin is None else begin - _TOLERANCE_SECONDS
    if earliest <= claimed <= now + _TOLERANCE_SECONDS:
        return claimed
    return now if begin is None else begin


def _age(pid: int) -> float | None:
    """Return the seconds since the start of the process, None if /proc does not show it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes() if pid else b""
        started = int(stat.rpartition(b")")[2].split()[19])  # field 22 of proc(5)
    except (OSError, IndexError):
        return None
    return max(0.0, since_boot() - started / os.sysconf("SC_CLK_TCK"))
