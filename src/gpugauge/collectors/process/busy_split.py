"""Split of the busy seconds of a GPU among its processes.

The driver's samples of processes are statistical and show the shares only. The busy seconds to share come from the
GPU's own samples: the seconds of all processes never exceed them, and the rest is counted as unaccounted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Samples of the GPU and of processes end up to one sample period (at most 1 s, nvml.h) apart. Up to this many seconds,
# claims or busy time without a counterpart are carried over to the next drain.
_MAX_CARRIED_SECONDS = 0.5
# Length of the driver's buffer: the smallest known wraps after 12 s.
_BUFFER_SECONDS = 12.0
# Upper bound of the time between a call of the driver and the arrival of its reply, unless the call hangs.
_MAX_LATENCY_SECONDS = 1.0

# Owner of busy time whose process is not certain.
UNCERTAIN = ""

# [µs on the driver's clock, pid, SM %, …], as in the worker's replies.
Rows = Sequence[Sequence[int]]


class BusySplit:
    """Splits busy seconds once per drain. The seconds of all processes and `unaccounted` add up to the GPU's."""

    def __init__(self) -> None:
        self._unaccounted = 0.0
        self._device: float | None = None
        self._drained: float | None = None
        self._newest: tuple[int, float] | None = None  # stamp of the newest row, and time of its arrival
        self._claims: dict[str, float] = {}
        self._carried = 0.0

    @property
    def unaccounted(self) -> float | None:
        """Busy seconds of the GPU that belong to no process; None if the GPU's busy seconds are not known."""
        return None if self._device is None else self._unaccounted

    def restart(self) -> None:
        """Start again at the driver's newest row, as a new worker does."""
        self._newest = None

    def drain(
        self, batches: Sequence[Rows], now: float, device_busy: float | None, owner: Callable[[int, float], str | None]
    ) -> dict[str, float]:
        """Return the busy seconds of each owner in the replies that arrived by `now`. `owner(pid, since)` returns the
        process that has had the pid since then: UNCERTAIN if it may have been another, None if there is none.
        """
        drained, self._drained = self._drained, now
        new_busy = self._new_busy(device_busy, now - drained if drained is not None else 0.0)
        if drained is None:
            return {}
        length = self._length(batches, now, drained)
        claims: dict[str, float] = {}
        for pid, share in shares(batches).items():
            process = owner(pid, now - length - _MAX_LATENCY_SECONDS)
            if process is not None:
                claims[process] = claims.get(process, 0.0) + share * length
        return self._settle(claims, new_busy)

    def _new_busy(self, device_busy: float | None, wall: float) -> float:
        """Return the busy seconds since the last drain; the wall time if the GPU's busy seconds are not known."""
        before, self._device = self._device, device_busy
        if device_busy is None:
            self._carried = 0.0
            return wall
        return 0.0 if before is None else max(0.0, device_busy - before)

    def _length(self, batches: Sequence[Rows], now: float, drained: float) -> float:
        """Return the seconds that the driver's means cover: the time since the newest row of the last drain."""
        newest = max((row[0] for batch in batches for row in batch if _valid(row)), default=None)
        before = self._newest
        if newest is None:
            return now - drained
        self._newest = (newest, now)
        length = now - drained
        if before is not None and newest > before[0]:
            length = min((newest - before[0]) * 1e-6, now - before[1])
        return min(length, _BUFFER_SECONDS)

    def _settle(self, new_claims: dict[str, float], new_busy: float) -> dict[str, float]:
        """Return the part of the GPU's busy time for each claim, all in the same proportion if it does not suffice."""
        claims = dict(self._claims)
        for process, seconds in new_claims.items():
            claims[process] = claims.get(process, 0.0) + seconds
        total, available = sum(claims.values()), self._carried + new_busy
        granted = min(total, available)
        given = {process: seconds * granted / total for process, seconds in claims.items()} if total > 0 else {}
        # The rest, on either side, is carried over for one drain only.
        left = {process: max(0.0, claims[process] - given.get(process, 0.0)) for process in new_claims}
        excess = max(1.0, sum(left.values()) / _MAX_CARRIED_SECONDS)
        self._claims = {process: seconds / excess for process, seconds in left.items()}
        uncertain = given.pop(UNCERTAIN, 0.0)
        if self._device is not None:
            self._carried = max(0.0, min(_MAX_CARRIED_SECONDS, new_busy, available - granted))
            self._unaccounted += max(0.0, available - granted - self._carried) + uncertain
        return given


def shares(batches: Sequence[Rows]) -> dict[int, float]:
    """Return the share of the time by pid: the mean of its rows. Rows of garbage (nvtop#110) are ignored."""
    totals: dict[int, float] = {}
    for batch in batches:
        rows: dict[int, list[int]] = {}
        for row in batch:
            if _valid(row):
                rows.setdefault(row[1], []).append(row[2])
        for pid, percents in rows.items():
            if not any(percents):
                continue
            totals[pid] = totals.get(pid, 0.0) + sum(percents) / len(percents) / 100 / len(batches)
    return totals


def _valid(row: Sequence[int]) -> bool:
    return len(row) >= 3 and row[0] > 0 and row[1] > 0 and 0 <= row[2] <= 100
