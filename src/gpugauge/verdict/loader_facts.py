"""The loading of a training's batches, computed from a window."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.base.text import whole
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.node.window import Track, Window
from gpugauge.sessions.session import Session
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.loaders import Load
from gpugauge.verdict.shares import seconds_in_window, waited_for_training
from gpugauge.wire import messages as wire

_MIN_BATCHES = 10  # in the window
_MOST_MEMORY = 0.8  # of the available memory, for new workers
_UNSEEN_WORKER_BYTES = 256 << 20  # of one that has not been measured: a process that has imported torch
_LEAST_OWN = 0.2  # of the time without waits that can be work, if the training thread waited for a CPU in the rest
PARTS: dict[str, Callable[[wire.Loader], float | None]] = {
    "cpu": lambda loader: loader.cpu_seconds,
    "threads": lambda loader: loader.threads_seconds,
    "storage": lambda loader: loader.storage_seconds,
    "blocked": lambda loader: loader.blocked_seconds,
    "runqueue": lambda loader: loader.queued_seconds,
}


def load(window: Window, process: str, found: Evidence) -> Load | None:
    """Return the loading over the window, None where it is not known. `found` is the other evidence of the process."""
    # The loader is reported some seconds later than the waits for it: all are of the same time.
    window = window.where(lambda point: process in point.sessions and bool(training.loader(point.sessions[process])))
    track, session = window.session(process), window.node.sessions[process]
    batches = rise(track, lambda loader: loader.batches)
    measured = rise(track, lambda loader: loader.measured)
    waits = track.rise(waited_for_training)
    seconds = seconds_in_window(window, process).get("training")
    if not batches or not measured or measured < _MIN_BATCHES or waits is None or not seconds:
        return None
    each = {part: (rise(track, seconds) or 0.0) / measured for part, seconds in PARTS.items()}
    workers = session.facts.get("loader_workers", "")
    count = whole(workers) or 0
    exposed = 1.0
    if found.devices and found.data_wait and found.data_wait_exposed is not None:
        exposed = min(1.0, found.data_wait_exposed / found.data_wait)
    waited = exposed * min(waits, seconds) / batches
    # Starts are rare and long: the device computes beside the other waits, and hardly beside these.
    start = min(waited, (rise(track, lambda loader: loader.start_seconds) or 0.0) / batches)
    # The first batch of an epoch is waited for with any number of workers.
    busy = each["cpu"] + each["storage"] + each["blocked"]
    first = (rise(track, lambda loader: loader.epochs) or 0.0) * busy / batches if count else 0.0
    working = seconds / batches - waited
    if working * batches < waits / batches:
        # A wait that ends in the window can have begun before it: a shorter rest is known from the phase alone.
        working = max(working, (track.rise(lambda s: training.phases(s).get("training")) or 0.0) / batches)
    # Waits for a CPU are neither work nor loading: other programs cause them, too.
    delayed = (rise(track, lambda loader: loader.thread_queued_seconds) or 0.0) / batches
    if not count:
        delayed = max(0.0, delayed - each["runqueue"])
    peers = max(0.0, 1.0 - found.local_work) * window.span / batches if found.local_work is not None else 0.0
    cpu = (rise(track, lambda loader: loader.process_cpu_seconds) or 0.0) / batches
    if window.span:
        cpu *= min(1.0, seconds / window.span)
    return Load(
        workers=count,
        own=max(_LEAST_OWN * working, working - delayed - peers),
        wait=max(0.0, waited - start - first - (0.0 if count else each["runqueue"])),
        start=start,
        cpu=each["cpu"],
        threads=each["threads"],
        storage=each["storage"],
        blocked=each["blocked"],
        queued=each["runqueue"],
        delayed=delayed,
        trainer_cpu=max(0.0, cpu - (0.0 if count else each["cpu"])),
        cpus=_cpus(window.node, process),
        throttled=found.cpu_throttled or 0.0,
        space=_space(window.node, process),
        slowest=track.mean(lambda s: training.slowest_worker(s) if s.connected else None),
        known=bool(workers),
    )


def rise(track: Track[Session], counter: Callable[[wire.Loader], float | None]) -> float | None:
    """Return the increase of a counter of the loader, None if it is not known."""
    return track.rise(lambda session: counter(loader) if (loader := training.loader(session)) else None)


def _cpus(node: Node, process: str) -> float | None:
    """Return the CPUs of the process: those on which it can run, and those that its cgroup allows it."""
    host = node.hosts.get(process)
    bound = training.cpus(node.sessions[process])
    quota, affinity = (host.cgroup.cpus, host.bounds.cpus) if host else (None, None)
    if quota is not None and bound is not None and affinity is not None and bound < affinity:
        quota *= bound / affinity  # the ranks of a host share the quota as they share the CPUs
    known = [cpus for cpus in (bound if bound is not None else affinity, quota) if cpus is not None]
    return min(known, default=None)


def _space(node: Node, process: str) -> int | None:
    """Return the number of further workers for which the memory is enough."""
    host, loader = node.hosts.get(process), training.loader(node.sessions[process])
    available, worker = host.memory_available if host else None, loader.worker_bytes if loader else None
    if available is None:
        return None
    # Without a measured worker the memory bounds the number, and does not show that there is space for none.
    found = int(_MOST_MEMORY * available / (worker or _UNSEEN_WORKER_BYTES))
    return found if worker else max(1, found)
