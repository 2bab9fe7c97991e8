"""A collective that does not end, seen without the hook: its kernels keep all GPUs of the job busy, and draw little.

The GPUs of a published case stood at 100 % and a third of their power for hours (marin-community/marin#7344). What NCCL
says of the job confirms it, or shows that collectives are launched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from gpugauge.node.window import GpuSample, Window
from gpugauge.verdict.devices import device, devices_of
from gpugauge.workload.ras import Launches

_BUSY = 0.98  # of each GPU, as a ratio: the kernel never ends
_POWER = 0.45  # of the highest mean draw at work, or of the limit: what waits draws about a third of the limit
_STEADY = 0.03  # between the highest and the lowest draw of a minute, as a share of it
_CLOCK = 0.9  # of the highest clock: a GPU that is slowed down draws little, too
_TENSOR = 0.005  # what waits uses no tensor cores
_LEAST_GPUS = 2  # one GPU waits for no other


class Counted(NamedTuple):
    """What NCCL says of a process, and the monotonic time since which all counts stand still: that of the last answer
    in which they had `moved`, else of the first one.
    """

    said: Launches
    since: float
    moved: bool = False

    def then(self, said: Launches, now: float) -> Counted:
        """Return what is known after another answer. Counts also vanish, with their rank or communicator."""
        return Counted(said, now, moved=True) if said.total > self.said.total else self._replace(said=said)


_Uses = frozenset[tuple[str, str]]  # (process, uuid)


@dataclass(slots=True)
class _Job:
    """Since when its processes hold their GPUs, the highest mean draw of these in watts, and since when they wait,
    `after` work or at a `low` share of their limits, in monotonic seconds.
    """

    began: float
    most: float = 0.0
    after: float | None = None
    low: float | None = None


class Spins:
    """The jobs on this node whose GPUs spin. Either what the same processes drew at work must have been seen, or NCCL
    says that ranks are behind or missing. `suspects` are the processes of which it should be asked.
    """

    def __init__(self) -> None:
        self._jobs: dict[_Uses, _Job] = {}
        self.suspects: frozenset[str] = frozenset()

    def update(self, window: Window, processes: Set[str], now: float, nccl: Mapping[str, Counted]) -> dict[str, float]:
        """Return the seconds for which the GPUs of the job of each process spin. The processes are those without the
        hook, `now` is in monotonic seconds.
        """
        members: defaultdict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
        for process in processes & window.node.identities.keys():
            workload = window.node.identities[process].workload
            if workload.job:
                key = workload.job_kind, workload.namespace, workload.job
                members[key].update((process, uuid) for uuid in devices_of(window.node, process))
        self._jobs = {uses: self._jobs.get(uses, _Job(now)) for uses in map(frozenset, members.values())}
        found: dict[str, float] = {}
        for uses, job in self._jobs.items():
            # Before, others have a part in the window.
            whole = now - job.began >= window.seconds
            after, low = _waiting(window, {uuid for _, uuid in uses}, job) if whole else (False, False)
            said = [nccl[process] for process, _ in uses if process in nccl]
            moved = max((each.since for each in said if each.moved), default=0.0)
            job.after = max(job.after or now, moved) if after else None
            job.low = max(job.low or now, moved) if low else None
            begin = job.after
            if begin is None and job.low is not None and any(each.said.held_up for each in said):
                begin = max(job.low, *(each.since for each in said))
            if begin is not None:
                found |= {process: now - begin for process, _ in uses}
        waiting = (uses for uses, job in self._jobs.items() if job.after is not None or job.low is not None)
        self.suspects = frozenset(process for uses in waiting for process, _ in uses)
        return found


def _waiting(window: Window, gpus: set[str], job: _Job) -> tuple[bool, bool]:
    """Return whether the GPUs of a job wait after work, and whether they wait at a low share of their limits."""
    draws = [draw for uuid in gpus if (draw := _draw(window, uuid)) is not None]
    if not gpus or len(draws) < len(gpus):
        return False, False
    job.most = max(job.most, sum(draws))
    limits = [window.node.reading(uuid).power_limit_milliwatts or 0 for uuid in gpus]
    after = len(gpus) >= _LEAST_GPUS and sum(draws) <= _POWER * job.most
    low = sum(draws) <= _POWER * sum(limits) / 1000 and all(limits)
    waits = (after or low) and all(_waits(window, uuid) for uuid in gpus)
    return waits and after, waits and low


def _watts(gpu: GpuSample) -> float | None:
    return None if gpu.power_milliwatts is None else gpu.power_milliwatts / 1000


def _draw(window: Window, uuid: str) -> float | None:
    """Return the mean draw of a GPU in watts; programs may share it."""
    key = (_draw, uuid)
    if key not in window.cache:
        window.cache[key] = window.gpu(uuid).mean(_watts)
    found: float | None = window.cache[key]
    return found


def _waits(window: Window, uuid: str) -> bool:
    """Return whether a GPU was busy for the whole window, at a steady draw, at a high clock, without arithmetic."""
    if (device(window, uuid).busy or 0.0) < _BUSY:  # nearly always
        return False
    track, highest = window.gpu(uuid), window.node.reading(uuid).clock_sm_max_mhz
    draws = [draw for point in window.points if (gpu := point.gpus.get(uuid)) and (draw := _watts(gpu)) is not None]
    clock, tensor = track.mean(lambda gpu: gpu.clock_mhz), track.rate(lambda gpu: gpu.tensor_active)
    steady = max(draws) - min(draws) <= _STEADY * max(draws)
    fast = clock is not None and highest is not None and clock >= _CLOCK * highest
    return steady and fast and (tensor or 0.0) < _TENSOR
