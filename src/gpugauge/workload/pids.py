"""The process that has a pid, and since when it is known to have it."""

from __future__ import annotations

from typing import NamedTuple

from gpugauge.workload.procfs import TICKS_PER_SECOND, Procfs, process_hash

# Start times are whole clock ticks, /proc/uptime whole hundredths of a second.
_ROUNDING_SECONDS = 0.05
_UNUSED_SECONDS = 60.0  # after which a pid is dropped from the table


class PidOwner(NamedTuple):
    """A process that has a pid since a monotonic time; `start` is in ticks. Both are None if /proc hides it."""

    process: str
    pid: int
    start: int | None = None
    since: float | None = None


class PidTable:
    """Owners of pids. In each tick call begin(), and then owner() any number of times."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._known: dict[int, tuple[PidOwner, float]] = {}  # before this tick: owner, and time of its last use
        self._this_tick: dict[int, PidOwner] = {}
        self._now = 0.0
        self._uptime: float | None = None
        self._boot: float | None = None
        # The driver reports pids of the initial pid namespace. In another one the same numbers are other processes.
        self._visible = procfs.shows_machine()

    def begin(self, now: float) -> None:
        """Start a tick at `now`, in monotonic seconds; drop the pids that were not used for a minute."""
        self._known |= {pid: (owner, self._now) for pid, owner in self._this_tick.items()}
        for pid in [pid for pid, (_, used) in self._known.items() if self._now - used > _UNUSED_SECONDS]:
            del self._known[pid]
        self._now, self._this_tick, self._boot = now, {}, None
        self._uptime = self._procfs.uptime()

    def owner(self, pid: int) -> PidOwner:
        """Return the process that has the pid now; each pid is read once per tick."""
        owner = self._this_tick.get(pid)
        if owner is None:
            owner = self._this_tick[pid] = self._read(pid)
        return owner

    def started_at(self, owner: PidOwner) -> float | None:
        """Return the Unix time at which the process started, None if it is not known."""
        if owner.start is None:
            return None
        if self._boot is None:
            self._boot = self._procfs.boot_time()
        return None if self._boot is None else self._boot + owner.start / TICKS_PER_SECOND

    def _read(self, pid: int) -> PidOwner:
        start = self._procfs.start_time(pid) if self._visible and pid > 0 else None
        if start is None:
            return PidOwner(process_hash(self._procfs.boot_id, str(pid), "unseen"), pid)
        known, _ = self._known.get(pid, (None, 0.0))
        if known is not None and known.start == start:
            return known
        since = self._now
        if self._uptime is not None:
            since -= max(0.0, self._uptime - start / TICKS_PER_SECOND - _ROUNDING_SECONDS)
        return PidOwner(process_hash(self._procfs.boot_id, str(pid), str(start)), pid, start, since)
