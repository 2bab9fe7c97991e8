"""The busy seconds of one GPU, split among the processes that used it.

The driver's samples of processes are statistical: they say how the time was shared. How much time there was to share is
known better from the GPU's own samples. So what the processes claim never adds up to more than the GPU was busy, and
what nobody claims stays apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# The GPU's samples and those of processes end up to a sample period (at most 1 s, nvml.h) apart: this much of a claim
# or of the GPU's time may meet its counterpart only one drain later.
_SLACK = 0.5
# Older use has left the driver's buffer: the smallest known wraps after 12 s.
_BUFFER = 12.0
# Between the call to the driver and its answer's arrival; an upper bound for calls that do not hang.
_LATENCY = 1.0

# Owner of what cannot be given to anybody for certain.
UNCERTAIN = ""

# [µs on the driver's clock, pid, SM %, …], as the worker sends them.
Rows = Sequence[Sequence[int]]


class BusySplit:
    """Hands out busy seconds once for each drain. Times are monotonic seconds; `device_busy` is the GPU's own counter.
    What was handed out and `unaccounted` add up to that counter's rise, less at most half a second that is still open.
    """

    def __init__(self) -> None:
        self._unaccounted = 0.0
        self._device: float | None = None
        self._drained: float | None = None
        self._newest: tuple[int, float] | None = None  # stamp of the newest row, and when it came
        self._claims: dict[str, float] = {}
        self._carried = 0.0

    @property
    def unaccounted(self) -> float | None:
        """Seconds in which the GPU was busy and that nobody was given; None while the GPU's own time is not known."""
        return None if self._device is None else self._unaccounted

    def restart(self) -> None:
        """A new worker begins at the driver's newest row."""
        self._newest = None

    def drain(
        self,
        batches: Sequence[Rows],
        now: float,
        device_busy: float | None,
        owner: Callable[[int, float], str | None],
    ) -> dict[str, float]:
        """Take the answers that came by `now`; return the seconds of each owner. `owner(pid, since)` names who has had
        the pid all the time since then: UNCERTAIN if it may have been another, None without such a process.
        """
        drained, self._drained = self._drained, now
        room = self._room(device_busy, now - drained if drained is not None else 0.0)
        if drained is None:
            return {}
        length = self._length(batches, now, drained)
        fresh: dict[str, float] = {}
        for pid, share in shares(batches).items():
            who = owner(pid, now - length - _LATENCY)
            if who is not None:
                fresh[who] = fresh.get(who, 0.0) + share * length
        return self._settle(fresh, room)

    def _room(self, device_busy: float | None, wall: float) -> float:
        """Return the seconds that there are to hand out; all of the wall time if nothing else is known."""
        before, self._device = self._device, device_busy
        if device_busy is None:
            self._carried = 0.0
            return wall
        return 0.0 if before is None else max(0.0, device_busy - before)

    def _length(self, batches: Sequence[Rows], now: float, drained: float) -> float:
        """Return the seconds over which the driver took its means: since the newest row that it had told before."""
        newest = max((row[0] for batch in batches for row in batch if _valid(row)), default=None)
        before = self._newest
        if newest is None:
            return now - drained
        self._newest = (newest, now)
        length = now - drained
        if before is not None and newest > before[0]:
            length = min((newest - before[0]) * 1e-6, now - before[1])
        return min(length, _BUFFER)

    def _settle(self, fresh: dict[str, float], room: float) -> dict[str, float]:
        """Give each claim its part of the GPU's time, all in the same proportion if it does not suffice."""
        claims = dict(self._claims)
        for who, seconds in fresh.items():
            claims[who] = claims.get(who, 0.0) + seconds
        total, available = sum(claims.values()), self._carried + room
        granted = min(total, available)
        given = {who: seconds * granted / total for who, seconds in claims.items()} if total > 0 else {}
        # What is left over, on either side, waits for one more drain and never longer.
        left = {who: max(0.0, claims[who] - given.get(who, 0.0)) for who in fresh}
        excess = max(1.0, sum(left.values()) / _SLACK)
        self._claims = {who: seconds / excess for who, seconds in left.items()}
        uncertain = given.pop(UNCERTAIN, 0.0)
        if self._device is not None:
            self._carried = max(0.0, min(_SLACK, room, available - granted))
            self._unaccounted += max(0.0, available - granted - self._carried) + uncertain
        return given


def shares(batches: Sequence[Rows]) -> dict[int, float]:
    """Return the share of the time, 0 to 1, by pid: the mean of its rows in each batch, over all batches. Some drivers
    fill the buffer with garbage (nvtop#110): rows of more than 100 percent or without a pid count for nothing.
    """
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
