"""Who a pid is and who a device is given to: what kernel and orchestrators know, put together."""

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
from gpugauge.workload.users import Users, names_are_ours

log = logging.getLogger(__name__)

_NOBODY = Workload()
_MAX_PROCESSES = 4096
# A process that the driver still lists may have just ended; if none is found for this long, it is something else.
_UNSEEN_SECONDS = 60.0


@dataclass(slots=True)
class _Known:
    """A process that was read; the names of its pod are completed later."""

    start: int
    facts: Facts
    workload: Workload
    devices: tuple[str, ...] = ()
    tried: tuple[View, tuple[str, ...]] | None = None  # what the last attempt to name the pod knew


class Workloads:
    """Identities of processes, each read once. Any thread may ask; nobody waits for an orchestrator."""

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
        users = Users(names_are_ours() and procfs.root == Path("/proc"))
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
        """Begin to ask the orchestrators, in a thread."""
        self._orchestrators.start()

    def stop(self) -> None:
        """End that thread."""
        self._orchestrators.stop()

    def refresh(self) -> None:
        """Ask the orchestrators once, here and now, after the processes were asked for: only pods that were seen are
        looked for. For a program that runs once, without start().
        """
        self._orchestrators.refresh()

    def of(self, pid: int, devices: tuple[str, ...] = (), *, start: int | None = None) -> Workload:
        """Return what is known about a process, all empty if it is gone.

        `devices` are the names (identity.device_names) of the devices that it uses: with them a pod can be named that
        no log folder names. `start` saves reading the start time to those who have it already.
        """
        with self._lock:
            known = self._known(pid, start)
            return self._named(known, devices) if known else _NOBODY

    def container_pid(self, pid: int, *, start: int | None = None) -> int | None:
        """Return the pid that the process has in its own container, None outside of one; `start` as in of()."""
        with self._lock:
            known = self._known(pid, start)
            return known.facts.container_pid if known else None

    def cgroup_directory(self, pid: int, controller: str) -> Path | None:
        """Return the folder in the cgroup file system that accounts for a process, None if it cannot be found."""
        try:
            text = self._procfs.read(pid, "cgroup").decode(errors="replace")
        except OSError:
            return None
        return cgroup.directory(text, self._cgroup_root, controller)

    def allocations(self) -> Mapping[str, tuple[Workload, ...]]:
        """Return who each device is given to, also while idle; the same object while nothing changes.

        The keys are names as in identity.device_names, whichever of them the orchestrator uses.
        """
        view = self._orchestrators.view
        if self._allocations[0] is not view:
            names = dict.fromkeys([*view.kubelet, *view.jobs])
            merged = {name: (*view.kubelet.get(name, ()), *view.jobs.get(name, ())) for name in names}
            self._allocations = (view, MappingProxyType(merged))
        return self._allocations[1]

    def sources(self) -> Mapping[str, bool]:
        """Return which sources work; one that does not apply here, or was not asked yet, is missing."""
        every = (self._visible, *self._reader.sources.values(), *self._orchestrators.sources.values())
        return {source.name: source.up for source in every if source.up is not None}

    def counters(self) -> Mapping[str, int]:
        """Return what was cut, cleaned, ignored or failed since the start."""
        ours = {"pids_vanished": self._vanished, "labels_cleaned": self._reader.labels_cleaned}
        return ours | self._orchestrators.counters

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
        self._visible.works()
        return known

    def _note_vanished(self) -> None:
        self._vanished += 1
        now = self._clock()
        if self._last_seen is None:
            self._last_seen = now
        elif now - self._last_seen > _UNSEEN_SECONDS:
            self._visible.fails(
                "processes on the devices are not in /proc, their labels are missing: run in the host's pid namespace",
                path=self._procfs.root,
            )

    def _named(self, known: _Known, devices: tuple[str, ...]) -> Workload:
        """Complete the names of a pod and its container, whenever there is something new to know about them."""
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
                self._orchestrators.pod_seen()
        return known.workload


def _place(known: _Known, view: View) -> Place | None:
    """Name the pod and the container of a process, as far as it is certain.

    The log folders know them by id. The kubelet knows only to whom it gave the devices, and a process may use a device
    that was given to another pod: its word counts only for a pod whose name is also the process's host name.
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
    """Return the host name that the kubelet gives to a pod: its name, cut to 63 characters."""
    return pod[:63].rstrip("-.")
