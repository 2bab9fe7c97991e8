"""Which process has a pid, and since when it surely had it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from gpugauge.workload.procfs import Procfs, process_hash

_TICKS = os.sysconf("SC_CLK_TCK")
# Start times are whole clock ticks, /proc/uptime whole hundredths of a second.
_ROUNDING = 0.05
_REMEMBERED = 60.0  # seconds
# Of the machine itself, where the driver's pids come from. PROC_PID_INIT_INO in include/linux/proc_ns.h.
_FIRST_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that has a pid. `start` is in clock ticks after boot, `since` the monotonic time from which on the pid
    is known to be its; both are None for a pid that /proc does not show.
    """

    process: str
    pid: int
    start: int | None = None
    since: float | None = None


class Owners:
    """Asks /proc who has a pid, once a tick: begin(), any number of of(), end()."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._known: dict[int, tuple[Owner, float]] = {}  # and when it was last looked at
        self._asked: dict[int, Owner] = {}
        self._now = 0.0
        self._uptime: float | None = None
        self._boot: float | None = None
        # The driver tells the machine's pids: in another pid namespace the same numbers are other processes.
        self._visible = shows_machine(procfs.root)

    def begin(self, now: float) -> None:
        """Start a tick at `now`, in monotonic seconds."""
        self._now, self._asked, self._boot = now, {}, None
        self._uptime = uptime(self._procfs.root)

    def of(self, pid: int) -> Owner:
        """Return who has the pid now."""
        owner = self._asked.get(pid)
        if owner is None:
            owner = self._asked[pid] = self._look(pid)
        return owner

    def end(self) -> None:
        """Forget the pids that nobody asked for in the last minute."""
        self._known |= {pid: (owner, self._now) for pid, owner in self._asked.items()}
        old = [pid for pid, (_, asked) in self._known.items() if self._now - asked > _REMEMBERED]
        for pid in old:
            del self._known[pid]

    def started_at(self, owner: Owner) -> float | None:
        """Return the Unix time at which the process began, None if that cannot be known."""
        if owner.start is None:
            return None
        if self._boot is None:
            self._boot = boot_time(self._procfs.root)
        return None if self._boot is None else self._boot + owner.start / _TICKS

    def _look(self, pid: int) -> Owner:
        start = self._procfs.start_time(pid) if self._visible and pid > 0 else None
        if start is None:
            return Owner(process_hash(self._procfs.boot_id, str(pid), "unseen"), pid)
        known, _ = self._known.get(pid, (None, 0.0))
        if known is not None and known.start == start:
            return known
        since = self._now
        if self._uptime is not None:
            since -= max(0.0, self._uptime - start / _TICKS - _ROUNDING)
        return Owner(process_hash(self._procfs.boot_id, str(pid), str(start)), pid, start, since)


def shows_machine(root: Path) -> bool:
    """Tell whether a proc file system shows the pids of the whole machine; one that does not tell is believed to."""
    try:
        return str((root / "self/ns/pid").readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True


def uptime(root: Path) -> float | None:
    """Return the seconds since boot, as start times count them."""
    if root == Path("/proc"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        return float((root / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def boot_time(root: Path) -> float | None:
    """Return the Unix time of the boot, from proc_stat(5)."""
    try:
        lines = (root / "stat").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None
