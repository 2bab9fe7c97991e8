"""Allocations and pod names from Kubernetes and Slurm, read in a thread. A scheduler's prolog writes a file per device,
as for dcgm-exporter, named by uuid, PCI address, `nvidia0` or index (`0.2`: GPU instance 2 of GPU 0), with a job on
each line: its number, and perhaps the uid of its user and its SLUID.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpugauge.base.guard import Loop
from gpugauge.base.jsonfile import read_bytes
from gpugauge.workload.controllers import Pod
from gpugauge.workload.environ import is_number
from gpugauge.workload.identity import Workload, address_name, clean
from gpugauge.workload.kubelet import Kubelet, KubeletError
from gpugauge.workload.podinfo import Place, PodNames, read_names
from gpugauge.workload.sources import Source

if TYPE_CHECKING:  # it loads ssl
    from gpugauge.workload.kubernetes.metadata import PodMetadata

T = TypeVar("T")
_INDEX = re.compile(r"\d{1,4}(?:\.\d{1,4})?")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z-]{1,80}|nvidia\d{1,4}")
_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_SLUID = re.compile(rb"s[0-9A-Z]{13}")
_MAX_FILES, _MAX_BYTES, _MAX_JOBS = 1024, 65536, 64


class JobFiles(NamedTuple):
    """The jobs by device: `index:0`, `index:0.2`, `nvidia0`, `pci:…` or uuid; the Unix times at which files named by an
    index were written; the numbers of jobs by SLUID.
    """

    devices: Mapping[str, tuple[Workload, ...]] = {}
    written: Mapping[str, float] = {}
    numbers: Mapping[str, str] = {}


def read_jobs(folder: Path, user_name: Callable[[int], str]) -> JobFiles:
    """Return what the files state. One that cannot be read has none. Raises OSError if the folder cannot be listed."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MAX_FILES)]
    devices: dict[str, tuple[Workload, ...]] = {}
    written: dict[str, float] = {}
    numbers: dict[str, str] = {}
    for file in names:
        name = f"index:{file}" if _INDEX.fullmatch(file) else address_name(file) if _ADDRESS.fullmatch(file) else file
        if name != file or _UUID.fullmatch(file):
            content, at = _read(folder / file)
            lines = [words for line in content.splitlines() if (words := line.split())]
            jobs = dict.fromkeys(_job(words, user_name) for words in lines)
            if jobs:
                devices[name] = (*devices.get(name, ()), *islice(jobs, _MAX_JOBS))
            if jobs and name.startswith("index:"):
                written[name] = at
            named = ((word.decode(), words) for words in lines for word in words[1:3] if _SLUID.fullmatch(word))
            numbers |= {sluid: clean(words[0]) for sluid, words in named if is_number(clean(words[0]))}
    return JobFiles(devices, written, numbers)


def _job(words: list[bytes], user_name: Callable[[int], str]) -> Workload:
    user = words[1] if len(words) > 1 and words[1].isdigit() and len(words[1]) <= 10 else None
    return Workload("slurm", job_id=clean(words[0]), user=clean(user_name(int(user))) if user else "")


def _read(path: Path) -> tuple[bytes, float]:
    """Return the content of a regular file and the time of its last change, otherwise nothing: reading a pipe could
    block.
    """
    try:
        return read_bytes(path)[:_MAX_BYTES], path.stat().st_mtime
    except OSError:
        return b"", 0.0


log = logging.getLogger(__name__)

# The last reply of the kubelet is used for this time if it stops responding: a restart takes less.
_KUBELET_KEEP_SECONDS = 60.0
# Shortest time between two refreshes: a new pod is resolved at once, but many new pods must not keep the thread busy.
_MIN_REFRESH_SECONDS = 1.0


class View(NamedTuple):
    """Data of all sources at one time. It is replaced as a whole, and only if it changed."""

    kubelet: Mapping[str, tuple[Workload, ...]] = {}
    jobs: JobFiles = JobFiles()
    names: PodNames = PodNames()
    pods: Mapping[str, Pod] = {}

    def place(
        self, container_id: str, pod_uid: str, hostname: str, devices: Sequence[Sequence[str]], named: Place | None
    ) -> Place | None:
        """Return pod and container of a process that uses `devices`, None if they are not certain; `named` is a known
        pod. Log folders have them by id. A process may use a device of another pod: an allocation counts only for a pod
        whose name is the host name of the process.
        """
        if container_id in self.names.containers:
            return self.names.containers[container_id]
        listed = self.listed(pod_uid)
        named = Place(listed.namespace, listed.name) if listed else self.names.pods.get(pod_uid) or named
        holders = [{w for name in names for w in self.kubelet.get(name, ())} for names in devices]
        common = set.intersection(*holders) if holders else set()
        if named:
            common = {w for w in common if (w.namespace, w.pod) == (named.namespace, named.pod)}
        else:
            # The kubelet cuts the host name of a pod to 63 characters.
            common = {w for w in common if w.pod[:63].rstrip("-.") == hostname}
        pods = {(w.namespace, w.pod) for w in common}
        if len(pods) != 1:
            return named
        (namespace, pod), *_ = pods
        return Place(namespace, pod, next(iter(common)).container if len(common) == 1 else "")

    def listed(self, uid: str) -> Pod | None:
        """Return a pod as the cluster lists it, unless the folders have another one with this UID. A pod of the node
        itself must be in them: in the API anybody may claim to be one.
        """
        pod, named = self.pods.get(uid), self.names.pods.get(uid)
        if pod is None or (named is None and not (pod.owner and (pod.owner.group, pod.owner.kind) == ("", "Node"))):
            return pod
        return pod if named == Place(pod.namespace, pod.name) else None


class Orchestrators:
    """Keeps `view` up to date once started. A source that fails does not affect the others."""

    def __init__(
        self,
        kubelet: Kubelet | None,
        job_mapping_dir: Path | None,
        pod_logs: Path | None,
        user_name: Callable[[int], str],
        poll_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        metadata: PodMetadata | None = None,
    ) -> None:
        self.view = View()
        self.sources = {name: Source(name, log) for name in ("kubelet", "pod_logs", "slurm")}
        self._metadata = metadata
        self.asks_cluster = metadata is not None  # a pod that is not there yet may come later
        if metadata:
            self.sources["pods"] = metadata.source
        self.counters = Counter(kubelet_failures=0, devices_ignored=0)
        self._kubelet, self._job_mapping_dir, self._pod_logs = kubelet, job_mapping_dir, pod_logs
        self._user_name, self._poll_seconds, self._clock = user_name, poll_seconds, clock
        self._answered: float | None = None
        self.jobs_read_at: float | None = None  # when the last reading of the job files began; None if it failed
        self.reads_jobs = job_mapping_dir is not None
        self.jobs_seen = False  # whether a process of a Slurm job was found: its prolog has made the folder
        self.ignored = 0  # devices in the last reply of the kubelet
        self._pods_seen = False
        self.wake = threading.Event()
        self._thread: Loop | None = None

    def start(self) -> None:
        """Refresh now and then every `poll_seconds`, in a thread."""
        self._thread = Loop("orchestrators", self._turn, wait=self._wait)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a thread that hangs for longer than the kubelet's time-out is left running."""
        if self._thread:
            self._thread.stopping.set()
            self.wake.set()
            self._thread.join(timeout=6.0)

    def request_pod_names(self, uid: str) -> None:
        """Refresh soon, since a process of an unnamed pod was found. From now on, missing sources are reported."""
        self._pods_seen = True
        if self._metadata:
            self._metadata.want(uid)
        self.wake.set()

    def refresh(self) -> None:
        """Read every source once. One that has what nobody expects keeps what it had, and is down."""
        pods = self._guarded("pods", self._metadata.refresh, self.view.pods) if self._metadata else {}
        view = View(
            self._guarded("kubelet", self._ask_kubelet, self.view.kubelet),
            self._guarded("slurm", self._read_jobs, self.view.jobs),
            self._guarded("pod_logs", self._read_names, self.view.names),
            pods,
        )
        if view != self.view:
            self.view = view

    def _guarded(self, source: str, read: Callable[[], T], before: T) -> T:
        try:
            return read()
        except Exception as error:  # noqa: BLE001  (an error of ours must not end the thread)
            self.sources[source].set_down(f"reading {source} failed: {type(error).__name__}: {error}")
            return before

    def _turn(self) -> None:
        self.wake.clear()
        self.refresh()

    def _wait(self) -> None:
        assert self._thread
        if not self._thread.stopping.wait(_MIN_REFRESH_SECONDS):
            self.wake.wait(max(0.0, self._poll_seconds - _MIN_REFRESH_SECONDS))

    def _ask_kubelet(self) -> Mapping[str, tuple[Workload, ...]]:
        source = self.sources["kubelet"]
        unused = self._answered is None and not self._pods_seen
        if self._kubelet is None or (unused and not _exists(self._kubelet.socket)):
            source.up = None  # no kubelet on this machine
            return {}
        try:
            allocations = self._kubelet.allocations()
        except KubeletError as error:
            self.counters["kubelet_failures"] += 1
            source.set_down(str(error), socket=self._kubelet.socket)
            recent = self._answered is not None and self._clock() - self._answered < _KUBELET_KEEP_SECONDS
            return self.view.kubelet if recent else {}
        source.set_up()
        self._answered = self._clock()
        self.counters["devices_ignored"] += max(0, allocations.ignored - self.ignored)
        self.ignored = allocations.ignored
        return allocations.devices

    def _read_jobs(self) -> JobFiles:
        if self._job_mapping_dir is None:
            return JobFiles()
        begin, self.jobs_read_at = self._clock(), None
        try:
            jobs = read_jobs(self._job_mapping_dir, self._user_name)
        except OSError as error:
            # The first prolog after a boot makes it.
            absent = isinstance(error, FileNotFoundError)
            if not (absent and not self.jobs_seen and self._job_mapping_dir.parent.is_dir()):
                remedy = "does Slurm run prolog.sh with this folder?" if absent else "the daemon needs to list it"
                sentence = f"the folder of slurm.job_mapping_dir cannot be read, jobs of devices are missing: {remedy}"
                self.sources["slurm"].set_down(sentence, path=self._job_mapping_dir, error=error.strerror)
                return JobFiles()
            jobs = JobFiles()
        self.sources["slurm"].set_up()
        self.jobs_read_at = begin
        return jobs

    def _read_names(self) -> PodNames:
        # Only a node with pods has these folders.
        if self._pod_logs is None or not self._pods_seen:
            return PodNames()
        try:
            names = read_names(self._pod_logs)
        except OSError as error:
            sentence = "the folders of pod logs cannot be read, names of pods are missing: mount /var/log/pods"
            self.sources["pod_logs"].set_down(sentence, path=self._pod_logs, error=error.strerror)
            return PodNames()
        self.sources["pod_logs"].set_up()
        return names


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # not permitted, so that the socket may exist
        return True
