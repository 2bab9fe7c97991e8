"""Workloads of processes and allocations of devices, from the kernel and the orchestrators."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gpugauge.workload import cgroup
from gpugauge.workload.identity import Workload
from gpugauge.workload.kubelet import Kubelet
from gpugauge.workload.orchestrators import Orchestrators, View
from gpugauge.workload.podlogs import Place
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.reader import Facts, Reader
from gpugauge.workload.sources import Source
from gpugauge.workload.users import Users, shares_host_users

log = logging.getLogger(__name__)

_UNKNOWN = Workload()
_MAX_PROCESSES = 4096
# A process that is not found may have just ended. If none is found for this long, /proc does not show them.
_INVISIBLE_SECONDS = 60.0


@dataclass(slots=True)
class _Known:
    """A process that was read. The names of its pod are added later."""

    start: int
    facts: Facts
    workload: Workload
    devices: tuple[str, ...] = ()
    tried: tuple[View, tuple[str, ...]] | None = None  # input of the last attempt to find the names of the pod


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
        poll_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        users = Users(shares_host_users() and procfs.root == Path("/proc"))
        kubelet = Kubelet(kubelet_socket, resources=kubelet_resources) if kubelet_socket else None
        self._procfs, self._cgroup_root, self._clock = procfs, Path(cgroup_root), clock
        self._reader = Reader(procfs, users)
        self._orchestrators = Orchestrators(kubelet, job_mapping_dir, pod_logs, users.name, poll_seconds, clock)
        self._visible = Source("procfs", log)
        self._vanished = 0
        self._last_seen: float | None = None
        self._cache: OrderedDict[int, _Known] = OrderedDict()
        self._lock = threading.Lock()
        self._allocations: tuple[View, Mapping[str, tuple[Workload, ...]]] = (View(), MappingProxyType({}))

    def start(self) -> None:
        """Start to read the orchestrators, in a thread."""
        self._orchestrators.start()

    def stop(self) -> None:
        """End that thread."""
        self._orchestrators.stop()

    def refresh(self) -> None:
        """Read the orchestrators once, without start(). Call resolve() before and after: names of pods are read only if
        a process of a pod was found.
        """
        self._orchestrators.refresh()

    def resolve(self, pid: int, devices: tuple[str, ...] = (), *, start: int | None = None) -> Workload:
        """Return the workload of a process, an empty one if it ended.

        `devices` are the names (`identity.device_names`) of the devices that it uses; they identify a pod whose name is
        in no log folder. `start` is the start time of the process; it is read if not given.
        """
        with self._lock:
            known = self._known(pid, start)
            return self._named(known, devices) if known else _UNKNOWN

    def container_pid(self, pid: int, *, start: int | None = None) -> int | None:
        """Return the pid of the process in its container, None outside of a container. For `start` see resolve()."""
        with self._lock:
            known = self._known(pid, start)
            return known.facts.container_pid if known else None

    def cgroup_directory(self, pid: int, controller: str) -> Path | None:
        """Return the cgroup folder of a process for a controller, None if it cannot be found."""
        try:
            text = self._procfs.read(pid, "cgroup").decode(errors="replace")
        except OSError:
            return None
        return cgroup.directory(text, self._cgroup_root, controller)

    def allocations(self) -> Mapping[str, tuple[Workload, ...]]:
        """Return the workloads that each device is assigned to; the same object as before if nothing changed.

        The keys are names as in `identity.device_names`; each orchestrator uses one of them.
        """
        view = self._orchestrators.view
        if self._allocations[0] is not view:
            names = dict.fromkeys([*view.kubelet, *view.jobs])
            merged = {name: (*view.kubelet.get(name, ()), *view.jobs.get(name, ())) for name in names}
            self._allocations = (view, MappingProxyType(merged))
        return self._allocations[1]

    def sources(self) -> Mapping[str, bool]:
        """Return the state of the sources by name, without those that do not apply or were not read yet."""
        every = (self._visible, *self._reader.sources.values(), *self._orchestrators.sources.values())
        return {source.name: source.up for source in every if source.up is not None}

    def counters(self) -> Mapping[str, int]:
        """Return the numbers of values that were truncated, cleaned, ignored or failed since the start, by kind."""
        own = {"pids_vanished": self._vanished, "labels_cleaned": self._reader.labels_cleaned}
        return own | self._orchestrators.counters

    def _known(self, pid: int, start: int | None) -> _Known | None:
        if start is None and pid > 0:
            start = self._procfs.start_time(pid)
        known = self._cache.get(pid)
        if known is None or known.start != start:
            facts = None if start is None else self._reader.read(pid, start)
            if start is None or facts is None:
                self._cache.pop(pid, None)
                self._note_vanished()
                return None
            known = self._cache[pid] = _Known(start, facts, facts.workload)
            if len(self._cache) > _MAX_PROCESSES:
                self._cache.popitem(last=False)
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
                path=self._procfs.root,
            )

    def _named(self, known: _Known, devices: tuple[str, ...]) -> Workload:
        """Return the workload with the names of pod and container, as far as they are known."""
        if not known.facts.pod_uid or (known.workload.pod and known.workload.container):
            return known.workload
        known.devices = devices or known.devices
        view = self._orchestrators.view
        tried, known.tried = known.tried, (view, known.devices)
        if tried is None or tried[0] is not view or tried[1] != known.devices:
            place = _place(known, view)
            if place:
                known.workload = replace(
                    known.workload, namespace=place.namespace, pod=place.pod, container=place.container
                )
            elif tried is None:
                self._orchestrators.request_pod_names()
        return known.workload


def _place(known: _Known, view: View) -> Place | None:
    """Return pod and container of a process, None if they are not certain.

    The log folders contain them by id. The kubelet reports only the allocations, and a process may use a device that is
    allocated to another pod: its reply counts only for a pod whose name is the host name of the process.
    """
    facts = known.facts
    if facts.container_id in view.names.containers:
        return view.names.containers[facts.container_id]
    named = view.names.pods.get(facts.pod_uid)
    if named is None and known.workload.pod:
        named = Place(known.workload.namespace, known.workload.pod)
    holders = [set(view.kubelet[name]) for name in known.devices if name in view.kubelet]
    common = set.intersection(*holders) if holders else set()
    if named:
        common = {w for w in common if (w.namespace, w.pod) == (named.namespace, named.pod)}
    else:
        common = {w for w in common if _host_name(w.pod) == facts.hostname}
    pods = {(w.namespace, w.pod) for w in common}
    if len(pods) != 1:
        return named
    (namespace, pod), *_ = pods
    return Place(namespace, pod, next(iter(common)).container if len(common) == 1 else "")


def _host_name(pod: str) -> str:
    """Return the host name that the kubelet sets for a pod: its name, cut to 63 characters."""
    return pod[:63].rstrip("-.")
