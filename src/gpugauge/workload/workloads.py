"""Workloads of processes and allocations of devices, from the kernel and the orchestrators."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpugauge.wire.messages import INIT_START
from gpugauge.workload import cgroup, environ
from gpugauge.workload.controllers import Pod
from gpugauge.workload.holders import Holders, Key, pod_key, slurm_key
from gpugauge.workload.identity import Workload, clean
from gpugauge.workload.indexes import Indexes
from gpugauge.workload.job import Job, JobFacts, numbered, resolve
from gpugauge.workload.kubelet import Kubelet
from gpugauge.workload.orchestrators import Orchestrators, View
from gpugauge.workload.podinfo import Place
from gpugauge.workload.procfs import Procfs, process_hash
from gpugauge.workload.reader import KernelFacts, Reader
from gpugauge.workload.registry import DeviceNames, Identity, Registry, Want
from gpugauge.workload.sources import Source
from gpugauge.workload.users import Users, shares_host_users

if TYPE_CHECKING:  # it loads ssl
    from gpugauge.workload.kubernetes.metadata import PodMetadata

log = logging.getLogger(__name__)

_MAX_PROCESSES = 4096
# A process that is not found may have just ended. If none is found for this long, /proc does not show them.
_INVISIBLE_SECONDS = 60.0
# Names that are part of a job, and the environment from the hook, are awaited for this time from the first sight on.
_NAMES_WAIT_SECONDS, _HOOK_WAIT_SECONDS = 60.0, 15.0
_INITIAL_PID_NAMESPACE = 4026531836


@dataclass(slots=True)
class _Known:
    """A process that was read. The names of its pod are added later."""

    start: int
    facts: KernelFacts
    workload: Workload
    found: float  # monotonic time
    settled: bool = False  # whether its job is resolved
    lacking: frozenset[str] = frozenset()  # what was not known then: the job is resolved again when it is
    held: tuple[tuple[Key, Job], ...] = ()  # its job by the keys of those to whom devices may be allocated
    devices: DeviceNames = ()
    tried: tuple[View, DeviceNames] | None = None  # input of the last attempt to find the names of the pod


class Workloads:
    """Workloads of processes, each read once. Thread-safe; no call waits for an orchestrator."""

    def __init__(
        self,
        procfs: Procfs,
        *,
        cgroup_root: Path | str = "/sys/fs/cgroup",
        kubelet_socket: Path | None = None,
        kubelet_resources: tuple[str, ...] = ("nvidia.com/",),
        job_mapping_dir: Path | None = None,
        pod_logs: Path | None = None,
        own_pod: Pod | None = None,
        docker_containers: Path | None = None,
        metadata: PodMetadata | None = None,
        besides: Workloads | None = None,
        users: Users | None = None,
        poll_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own_pod` is the pod that this daemon runs in as a sidecar: every process that it sees is in that pod.
        `docker_containers` is Docker's folder of containers. `users` are by default those of the host, where this
        process knows them. `besides` are those of another /proc, whose sources and counts are reported, too.
        """
        users = self._users = users or Users(shares_host_users() and procfs.root == Path("/proc"))
        kubelet = Kubelet(kubelet_socket, resources=kubelet_resources) if kubelet_socket else None
        self.procfs, self._cgroup_root, self._clock = procfs, Path(cgroup_root), clock
        self._reader = Reader(procfs, users, docker_containers)
        self._orchestrators = Orchestrators(
            kubelet, job_mapping_dir, pod_logs, users.name, poll_seconds, clock, metadata
        )
        self._visible, self._besides = Source("procfs", log), besides
        self._vanished = 0
        self._last_seen: float | None = None
        self._cache: OrderedDict[int, _Known] = OrderedDict()
        self._lock = threading.RLock()
        self._own_pod, self._host = own_pod, procfs.host()
        self._holders = Holders(clock)
        self._agents: OrderedDict[str, tuple[Job, bool]] = OrderedDict()  # by `process` of a torchrun; if complete
        self._numbers: OrderedDict[str, tuple[str, bool]] = OrderedDict()  # by SLUID; whether the number is proven
        self.indexes = Indexes()
        self._changes = 0  # jobs that were resolved again, with another result
        self._views, self._checked = 0, View()  # the number of different ones, and the last
        self._allocations: Mapping[str, tuple[Workload, ...]] = MappingProxyType({})
        self._allocated_at = (View(), 0, 0)  # their input: the view, and the numbers of changes
        self.registry = Registry(self.identify, lambda: self.version, clock)

    def start(self) -> None:
        """Start to read the orchestrators, in a thread."""
        self._orchestrators.start()

    def stop(self) -> None:
        """End that thread."""
        self._orchestrators.stop()

    def refresh(self) -> None:
        """Read the orchestrators once, without start(). Pods have names only after a process of one was resolved."""
        self._orchestrators.refresh()

    @property
    def version(self) -> int:
        """A number that is another when a workload may be. Jobs that lacked what is known now are resolved again."""
        if self._checked is not self._orchestrators.view:
            with self._lock:
                self._checked, self._views = self._orchestrators.view, self._views + 1
                for known in filter(lambda each: each.lacking, self._cache.values()):
                    self._name(known)
                    self._settle(known)
        return self._views + self._changes + self._holders.changes + self.indexes.changes

    def resolve(self, pid: int, devices: DeviceNames = (), **more: Any) -> Workload:
        """Return the workload of a process, an empty one if it ended. The arguments are those of a Want."""
        return self.identify(Want(pid, devices=devices, **more)).workload

    def identify(self, want: Want) -> Identity:
        """Return who a process is, nobody if it ended; may hang. What was sent is for an environment that is hidden."""
        known = self._known(want.pid, want.start)
        if known is None:
            return Identity()
        with self._lock:
            if want.sent and known.facts.job.hidden:
                self._add_environment(known, environ.sent(want.sent))
            known.devices = want.devices or known.devices
            self._name(known)
            if known.lacking or not known.settled:
                self._settle(known)
            for key, job in known.held:
                self._holders.found(key, job, known.workload.job_id, known.start)
            return Identity(known.workload, known.facts.container_pid)

    def claimed(self, environment: Mapping[str, str], session: str, uid: int, namespace: int | None) -> Workload:
        """Return the workload of a process that /proc hides, by what its hook sent; the `uid` is the kernel's."""
        on_host = namespace is None or namespace == _INITIAL_PID_NAMESPACE
        # Ranks without a launcher that is visible here share the port at which they meet.
        port = environment.get("MASTER_PORT", "") if environment.get("WORLD_SIZE", "1") != "1" else ""
        place = str(namespace), environment.get(INIT_START, "")
        launch = process_hash(*place, port) if port else process_hash(session)
        facts = JobFacts(
            environ.sent(environment),
            claimed=True,
            user=clean(self._users.name(uid) if on_host and self._own_pod is None else self._users.number(uid)),
            host=self._host,
            pod=self._own_pod,
            host_network=on_host or self._own_pod is not None,
            launch=launch[:8],
        )
        pod = self._own_pod or Pod("", "")
        job = resolve(facts)
        job = job._replace(source="hook") if job.source == "ancestry" else job
        return _with_job(Workload("pod" if pod.name else "", pod.namespace, pod.name), job)

    def cgroup_directory(self, pid: int, controller: str) -> Path | None:
        """Return the cgroup folder of a process for a controller, None if it cannot be found."""
        text = self.procfs.content(pid, "cgroup").decode(errors="replace")
        return cgroup.directory(text, self._cgroup_root, controller)

    def allocations(self) -> Mapping[str, tuple[Workload, ...]]:
        """Return the workloads by `identity.device_names`; the same object as before if nothing changed."""
        if self._allocated_at != (self._orchestrators.view, self._holders.changes, self.indexes.changes):
            with self._lock:
                view = self._orchestrators.view
                if self._allocated_at[0] is not view:
                    self._holders.forget(view)
                self._allocated_at = (view, self._holders.changes, self.indexes.changes)
                merged = dict(view.kubelet)
                for name, jobs in view.jobs.devices.items():
                    device = self.indexes.name(name, at) if (at := view.jobs.written.get(name)) else name
                    if device:
                        merged[device] = tuple(dict.fromkeys((*merged.get(device, ()), *jobs)))
                jobs_of = self._holders.job  # a pod has one when one of its processes was found
                self._allocations = MappingProxyType(
                    {name: tuple(_with_job(w, jobs_of(w)) for w in holders) for name, holders in merged.items()}
                )
        return self._allocations

    def lists_all(self) -> bool:
        """Return whether a device without an allocation is free: a source lists all, by names that are known."""
        listing = (self._orchestrators.sources[name].up for name in ("kubelet", "slurm"))
        return any(listing) and not self._orchestrators.ignored

    def sources(self) -> Mapping[str, bool]:
        """Return the state of the sources by name, without those that do not apply or were not read yet."""
        every = (self._visible, *self._reader.sources.values(), *self._orchestrators.sources.values())
        others = self._besides.sources() if self._besides else {}
        return {**others, **{source.name: source.up for source in every if source.up is not None}}

    def counters(self) -> Mapping[str, int]:
        """Return the numbers of values that were truncated, cleaned, ignored or failed since the start, by kind."""
        own = {"pids_vanished": self._vanished, "labels_cleaned": self._reader.labels_cleaned}
        own["jobs_changed"] = self._changes
        own |= self._orchestrators.counters
        others = self._besides.counters() if self._besides else {}
        return {kind: count + others.get(kind, 0) for kind, count in own.items()}

    def _known(self, pid: int, start: int | None) -> _Known | None:
        """Return a process, None if it has ended. It is read without the lock, since that may hang."""
        if start is None and pid > 0:
            start = self.procfs.start_time(pid)
        known, facts = self._cache.get(pid), None
        if start is not None and (known is None or known.start != start):
            facts = self._reader.read(pid, start)
        with self._lock:
            known = self._cache.get(pid)
            # A later process may have been read in the meantime.
            if facts and start is not None and (known is None or known.start < start):
                known = self._cache[pid] = _Known(start, facts, self._placed(facts), self._clock())
                if len(self._cache) > _MAX_PROCESSES:
                    self._cache.popitem(last=False)
            if known is None or known.start != start:
                self._note_vanished()
                return None
            self._cache.move_to_end(pid)
            self._last_seen = self._clock()
            self._visible.set_up()
            return known

    def _note_vanished(self) -> None:
        self._vanished += 1
        now = self._clock()
        if self._last_seen is None:
            self._last_seen = now
        elif now - self._last_seen > _INVISIBLE_SECONDS:
            self._visible.set_down(
                "processes on the devices are not in /proc, their labels are missing: run in the host's pid namespace",
                path=self.procfs.root,
            )

    def _placed(self, facts: KernelFacts) -> Workload:
        """Return the workload of a process, in the daemon's own pod if it is a sidecar."""
        own = self._own_pod
        if own is None or facts.job.pod_uid not in {"", own.uid}:
            return facts.workload
        return facts.workload._replace(kind="pod", namespace=own.namespace, pod=own.name, container="", job_id=own.uid)

    def _name(self, known: _Known) -> None:
        """Add the names of pod and container, as far as they are known."""
        if not known.facts.job.pod_uid or (known.workload.pod and known.workload.container):
            return
        view = self._orchestrators.view
        tried, known.tried = known.tried, (view, known.devices)
        if tried is None or tried[0] is not view or tried[1] != known.devices:
            facts, at = known.facts.job, known.workload
            named = Place(at.namespace, at.pod) if at.pod else None
            hostname = facts.environment.get("HOSTNAME", "")
            place = view.place(facts.container_id, facts.pod_uid, hostname, known.devices, named)
            if place:
                known.workload = known.workload._replace(
                    namespace=place.namespace, pod=place.pod, container=place.container
                )
            if tried is None and (place is None or self._awaits_metadata(known)):
                self._orchestrators.request_pod_names(facts.pod_uid)

    @staticmethod
    def _add_environment(known: _Known, environment: dict[str, str]) -> None:
        """Add the environment that the hook sent. The first one counts."""
        facts = known.facts.job._replace(environment=environment, hidden=False, claimed=True)
        known.facts = known.facts._replace(job=facts)
        job = "" if facts.pod_uid or facts.slurm_job else environ.slurm_job(environment)
        run, job_id = clean(environ.run_identity(environment)), job or known.workload.job_id
        known.workload = known.workload._replace(run_id=run, job_id=job_id)

    def _lacking(self, known: _Known, pod: Pod | None, number: str | None) -> dict[str, float]:
        """Return what may be part of the job and is not known yet, and for how many seconds it is awaited."""
        facts = known.facts.job
        found = {
            "environment": (facts.hidden, _HOOK_WAIT_SECONDS),
            "number": (number is None, _NAMES_WAIT_SECONDS if self._orchestrators.reads_jobs else 0.0),
            "pod": (bool(facts.pod_uid) and pod is None, _NAMES_WAIT_SECONDS),
            "owner": (bool(facts.pod_uid) and self._awaits_metadata(known), _NAMES_WAIT_SECONDS),
        }
        return {name: seconds for name, (lacks, seconds) in found.items() if lacks}

    def _settle(self, known: _Known) -> None:
        """Resolve the job of a process once all that may be part of it is known or awaited too long; then again."""
        age, pod, (number, proven) = self._clock() - known.found, self._pod(known), self._number(known)
        awaited = self._lacking(known, pod, number)
        lacking = frozenset(awaited)
        if not lacking < known.lacking if known.settled else any(age < seconds for seconds in awaited.values()):
            return
        facts = known.facts.job._replace(pod=pod, incomplete=bool(lacking))
        before = known.workload
        if number:
            facts, before = numbered(facts, number, proven=proven), before._replace(job_id=number)
        found = self._job(known, facts, waits=age < _NAMES_WAIT_SECONDS)
        if found is None:
            return
        job, user = found
        if known.settled and (before.job_kind, before.job) != (job.kind, job.name):
            self._changes += 1
            log.info("the job %s is %s now: a name in it came late", before.job, job.name)
        for key, earlier in known.held:
            self._holders.renamed(key, earlier, job)
        known.settled, known.lacking, known.workload = True, lacking, _with_job(before, job)
        keys = [pod_key(pod.namespace, pod.name)] if pod and job.kind else []
        if job.kind == "slurm":
            self._orchestrators.jobs_seen = self._orchestrators.jobs_seen or bool(facts.slurm_job)
            keys.append(slurm_key(before.job_id, "" if before.job_id == facts.slurm_job else user))
        known.held = tuple((key, job) for key in keys)

    def _job(self, known: _Known, facts: JobFacts, *, waits: bool) -> tuple[Job, str] | None:
        """Return the job of a process with these facts and the name of its user, None while that is awaited."""
        agent = known.facts.parent if "TORCHELASTIC_RUN_ID" in facts.environment else ""
        # torchrun starts its ranks again with another port.
        job, complete = self._agents.get(agent, (None, False))
        if job and (complete or facts.incomplete):
            return job, facts.user
        job = resolve(facts)
        if known.facts.user is not None and f"{facts.user}/" in job.name:
            name = self._reader.user_name(known.facts.user)
            if name is None and waits:
                return None
            facts = facts._replace(user=name or facts.user)
            job = resolve(facts)
        if agent:
            self._agents[agent] = job, not facts.incomplete
            if len(self._agents) > _MAX_PROCESSES:
                self._agents.popitem(last=False)
        return job, facts.user

    def _number(self, known: _Known) -> tuple[str | None, bool]:
        """Return the number of the Slurm job of a SLUID (None: unknown yet, empty: none), and whether its prolog has
        stated it; that which was found first is of all its processes.
        """
        facts, files = known.facts.job, self._orchestrators
        sluid = facts.slurm_job
        if not sluid or environ.is_number(sluid):
            return "", False
        if sluid not in self._numbers:
            number = files.view.jobs.numbers.get(sluid, "")
            waits = files.reads_jobs and self._clock() - known.found < _NAMES_WAIT_SECONDS
            if not number and waits and (files.jobs_read_at is None or files.jobs_read_at < known.found):
                files.wake.set()  # the prolog has written its file before the job began
                return None, False
            claimed = environ.slurm_job(facts.environment, sluid)
            found = number or (claimed if claimed != sluid else self._number_of_devices(known))
            if not found:
                return None, False
            self._numbers[sluid] = found, bool(number)
            if len(self._numbers) > _MAX_PROCESSES:
                self._numbers.popitem(last=False)
        return self._numbers[sluid]

    def _number_of_devices(self, known: _Known) -> str:
        """Return the number of the only job of the user to which the devices of a process are allocated."""
        users = {"", known.workload.user}
        allocations = self.allocations()
        holders = [[w for name in names for w in allocations.get(name, ())] for names in known.devices]
        jobs = [{w.job_id for w in found if w.kind == "slurm" and w.user in users} for found in holders]
        common = set.intersection(*jobs) if jobs else set()
        return common.pop() if len(common) == 1 else ""

    def _pod(self, known: _Known) -> Pod | None:
        workload, uid = known.workload, known.facts.job.pod_uid
        if self._own_pod and uid in {"", self._own_pod.uid}:
            return self._own_pod
        listed = self._orchestrators.view.listed(uid)
        return listed or (Pod(workload.namespace, workload.pod, uid) if workload.pod else None)

    def _awaits_metadata(self, known: _Known) -> bool:
        """Return whether the cluster has not stated the controller of the process's pod yet."""
        uid = known.facts.job.pod_uid
        own = self._own_pod.uid if self._own_pod else ""
        return self._orchestrators.asks_cluster and uid != own and not self._orchestrators.view.listed(uid)


def _with_job(workload: Workload, job: Job) -> Workload:
    return workload._replace(job_kind=job.kind, job=job.name, job_source=job.source)
