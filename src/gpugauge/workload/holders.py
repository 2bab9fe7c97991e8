"""The jobs of those to whom devices are allocated: pods and Slurm jobs, by the processes of theirs that were found."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gpugauge.workload.identity import Workload
from gpugauge.workload.job import Job
from gpugauge.workload.orchestrators import View

_MAX_HOLDERS = 4096
# A pod may run one training after the other. Workloads of processes are resolved again once a minute.
_LAST_SECONDS = 150.0

Key: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class _Held:
    """A job with the UID of its pod, the start of the process that had it first, and when it was last seen."""

    job: Job
    uid: str
    start: int
    seen: float


class Holders:
    """`changes` counts the changes of what `job` returns. `clock` returns seconds of a steady clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changes = 0
        self._clock = clock
        self._held: OrderedDict[Key, _Held] = OrderedDict()

    def found(self, key: Key, job: Job, uid: str, start: int) -> None:
        """Note a process of a holder. The first job of a pod stays while its processes are there."""
        now, held = self._clock(), self._held.get(key)
        if held and (held.job, held.uid) == (job, uid):
            held.seen = now
            return
        # A pod that is created again has the same name.
        newer = held and (start > held.start if held.uid != uid else now - held.seen > _LAST_SECONDS)
        if held is None or newer:
            self._held[key] = _Held(job, uid, start, now)
            self.changes += 1
            if len(self._held) > _MAX_HOLDERS:
                self._held.popitem(last=False)

    def renamed(self, key: Key, before: Job, job: Job) -> None:
        """Note that the job of a holder has another name, since a source of names has answered."""
        held = self._held.get(key)
        if held and held.job == before:
            held.job = job
            self.changes += 1

    def job(self, workload: Workload) -> Job:
        """Return the job of a holder; an empty one for a pod of which no process was found."""
        if workload.kind != "slurm":
            held = self._held.get(pod_key(workload.namespace, workload.pod))
            return held.job if held else Job()
        keys = [slurm_key(workload.job_id, user) for user in dict.fromkeys(("", workload.user))]
        known = (self._held[key].job for key in keys if key in self._held)
        return next(known, Job("slurm", workload.job_id, source="slurm"))

    def forget(self, view: View) -> None:
        """Drop pods to which nothing is allocated any more, and those of whose name another one exists now."""
        allocated = {pod_key(w.namespace, w.pod) for holders in view.kubelet.values() for w in holders}
        uids: dict[Key, set[str]] = {}
        for uid, place in view.names.pods.items():
            uids.setdefault(pod_key(place.namespace, place.pod), set()).add(uid)
        for key, held in list(self._held.items()):
            if key[0] == "pod" and (key not in allocated or held.uid not in uids.get(key, {held.uid})):
                del self._held[key]
                self.changes += 1


def pod_key(namespace: str, name: str) -> Key:
    """Return the key of a pod."""
    return "pod", namespace, name


def slurm_key(job_id: str, user: str) -> Key:
    """Return the key of a Slurm job; without a user if the kernel has stated its id."""
    return "slurm", job_id, user
