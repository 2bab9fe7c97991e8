"""A collective that does not end, seen without the hook: its kernels keep all GPUs of the job busy, and draw little.

The GPUs of a published case stood at 100 % and a third of their power for hours (marin-community/marin#7344).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass

from gpugauge.node.window import GpuSample, Window
from gpugauge.verdict.facts import device, devices_of

_BUSY = 0.98  # of each GPU, as a ratio: the kernel never ends
_POWER = 0.45  # of the highest mean draw at work: what waits draws about a third of the limit
_STEADY = 0.03  # between the highest and the lowest draw of a minute, as a share of it
_CLOCK = 0.9  # of the highest clock: a GPU that is slowed down draws little, too
_TENSOR = 0.005  # what waits uses no tensor cores
_LEAST_GPUS = 2  # one GPU waits for no other


_Uses = frozenset[tuple[str, str]]  # (process, uuid)


@dataclass(slots=True)
class _Job:
    """Since when its processes hold their GPUs, the highest mean draw of these in watts, and since when they spin, in
    monotonic seconds.
    """

    began: float
    most: float = 0.0
    since: float | None = None


class Spins:
    """The jobs on this node whose GPUs spin. What the same processes drew at work must have been seen."""

    def __init__(self) -> None:
        self._jobs: dict[_Uses, _Job] = {}

    def update(self, window: Window, processes: Set[str], now: float) -> dict[str, float]:
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
            job.since = (job.since or now) if whole and _spins(window, {uuid for _, uuid in uses}, job) else None
            if job.since is not None:
                found |= {process: now - job.since for process, _ in uses}
        return found


def _spins(window: Window, gpus: set[str], job: _Job) -> bool:
    draws = [draw for uuid in gpus if (draw := window.gpu(uuid).mean(_watts)) is not None]
    if not _LEAST_GPUS <= len(gpus) == len(draws):
        return False
    job.most = max(job.most, sum(draws))
    return sum(draws) <= _POWER * job.most and all(_waits(window, uuid) for uuid in gpus)


def _watts(gpu: GpuSample) -> float | None:
    return None if gpu.power_milliwatts is None else gpu.power_milliwatts / 1000


def _waits(window: Window, uuid: str) -> bool:
    """Return whether a GPU was busy for the whole window, at a steady draw, at a high clock, without arithmetic."""
    track, highest = window.gpu(uuid), window.node.reading(uuid).clock_sm_max_mhz
    draws = [draw for point in window.points if (gpu := point.gpus.get(uuid)) and (draw := _watts(gpu)) is not None]
    clock, tensor = track.mean(lambda gpu: gpu.clock_mhz), track.rate(lambda gpu: gpu.tensor_active)
    steady = max(draws) - min(draws) <= _STEADY * max(draws)
    fast = clock is not None and highest is not None and clock >= _CLOCK * highest
    return (device(window, uuid).busy or 0.0) >= _BUSY and steady and fast and (tensor or 0.0) < _TENSOR
