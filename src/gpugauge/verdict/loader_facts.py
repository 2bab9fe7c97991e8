"""The loading of a training's batches, computed from a window of exported metrics."""

from __future__ import annotations

from gpugauge.base.text import whole
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.loaders import Load
from gpugauge.verdict.shares import seconds_in_window
from gpugauge.verdict.window import Window

LATEST = (
    *("gpu_process_cgroup_cpus", "gpu_process_affinity_cpus", "gpu_process_memory_available_bytes"),
    *("torch_cpus", "torch_loader_worker_memory_bytes"),
)
HISTORY = (
    *("torch_loader_batches_total", "torch_loader_measured_batches_total", "torch_loader_seconds_total"),
    *("torch_loader_epochs_total", "torch_loader_start_seconds_total", "torch_loader_slowest_worker_ratio"),
    *("torch_process_cpu_seconds_total", "torch_thread_runqueue_seconds_total"),
)

_MIN_BATCHES = 10  # in the window
_MOST_MEMORY = 0.8  # of the available memory, for new workers
_UNSEEN_WORKER_BYTES = 256 << 20  # of one that has not been measured: a process that has imported torch
_LEAST_OWN = 0.2  # of the time without waits that can be work, if the training thread waited for a CPU in the rest
_PARTS = ("cpu", "threads", "storage", "blocked", "runqueue")


def load(window: Window, process: str, found: Evidence) -> Load | None:
    """Return the loading over the window, None where it is not known. `found` is the other evidence of the process."""
    window = window.since_present("torch_process_info", process)
    batches = window.rise("torch_loader_batches_total", process)
    measured = window.rise("torch_loader_measured_batches_total", process)
    waits = window.rise("torch_data_wait_seconds_total", process, "training")
    seconds = seconds_in_window(window, process).get("training")
    if not batches or not measured or measured < _MIN_BATCHES or waits is None or not seconds:
        return None
    parts = {part: window.rise("torch_loader_seconds_total", process, part) for part in _PARTS}
    each = {part: (spent or 0.0) / measured for part, spent in parts.items()}
    workers = next((labels["workers"] for labels, _ in window.samples("torch_loader_info", "process", process)), "")
    count = whole(workers) or 0
    exposed = 1.0
    if found.devices and found.data_wait and found.data_wait_exposed is not None:
        exposed = min(1.0, found.data_wait_exposed / found.data_wait)
    waited = exposed * min(waits, seconds) / batches
    # Starts are rare and long: the device computes beside the other waits, and hardly beside these.
    start = min(waited, (window.rise("torch_loader_start_seconds_total", process) or 0.0) / batches)
    # The first batch of an epoch is waited for with any number of workers.
    busy = each["cpu"] + each["storage"] + each["blocked"]
    first = (window.rise("torch_loader_epochs_total", process) or 0.0) * busy / batches if count else 0.0
    working = seconds / batches - waited
    if working * batches < waits / batches:
        # A wait that ends in the window can have begun before it: a shorter rest is known from the phase alone.
        working = max(working, (window.rise("torch_phase_seconds_total", process, "training") or 0.0) / batches)
    # Waits for a CPU are neither work nor loading: other programs cause them, too.
    delayed = (window.rise("torch_thread_runqueue_seconds_total", process) or 0.0) / batches
    if not count:
        delayed = max(0.0, delayed - each["runqueue"])
    peers = max(0.0, 1.0 - found.local_work) * window.span / batches if found.local_work is not None else 0.0
    cpu = (window.rise("torch_process_cpu_seconds_total", process) or 0.0) / batches
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
        cpus=_cpus(window, process),
        throttled=found.cpu_throttled or 0.0,
        space=_space(window, process),
        slowest=window.mean("torch_loader_slowest_worker_ratio", process),
        known=bool(workers),
    )


def _cpus(window: Window, process: str) -> float | None:
    """Return the CPUs of the process: those on which it can run, and those that its cgroup allows it."""
    bound, quota = window.last("torch_cpus", process), window.last("gpu_process_cgroup_cpus", process)
    affinity = window.last("gpu_process_affinity_cpus", process)
    if quota is not None and bound is not None and affinity is not None and bound < affinity:
        quota *= bound / affinity  # the ranks of a host share the quota as they share the CPUs
    known = [cpus for cpus in (bound if bound is not None else affinity, quota) if cpus is not None]
    return min(known, default=None)


def _space(window: Window, process: str) -> int | None:
    """Return the number of further workers for which the memory is enough."""
    available = window.last("gpu_process_memory_available_bytes", process)
    worker = window.last("torch_loader_worker_memory_bytes", process)
    if available is None:
        return None
    # Without a measured worker the memory bounds the number, and does not show that there is space for none.
    found = int(_MOST_MEMORY * available / (worker or _UNSEEN_WORKER_BYTES))
    return found if worker else max(1, found)
