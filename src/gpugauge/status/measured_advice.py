"""Advice with values that were measured: memory, PCIe lanes, clocks, CPU limit, ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpugauge.base.text import whole
from gpugauge.faults.table import SLOWDOWNS
from gpugauge.metric import Value
from gpugauge.status.model import ProcessStatus
from gpugauge.status.words import digits, factor

_MIN_BATCH_RATIO = 1.5  # with less room a larger batch is not worth a change
_MIN_FRAGMENTATION = 0.15
_SOON_SECONDS = 86_400.0  # until full: a growth that is slower is a fact, and no advice
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_GIB, _MIB = 1 << 30, 1 << 20
# With the matcher of a job; the label `rank`, and the node as `instance`.
_SLOWEST_RANK = (
    "topk(1, rate(torch_local_work_seconds_total[5m]) * on (process) group_left (rank) torch_process_info{{{}}})"
)
# Users choose the names of their jobs, and people paste what the advice says.
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+-]+")
_PINNED = "pin_memory=True and non_blocking=True"


class Subject(Protocol):
    """The exported series of one process; see gpugauge.status.advice."""

    @property
    def process(self) -> ProcessStatus:
        """Its status."""

    def rows(self, name: str) -> Any:
        """Return the samples of a family."""

    def of_node(self, name: str) -> Any:
        """Return the samples of a family that has no label `process`."""

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the first sample with these labels."""

    def label(self, name: str, label: str) -> str:
        """Return a label of an info family."""


def larger_batch(subject: Subject) -> str | None:
    """Return the change where the GPU has gaps or is not filled, and memory is left."""
    if subject.process.limited_by not in {"underfilled", "host_bound"}:
        return None
    ratio = subject.value("training_batch_headroom_ratio")
    if ratio is None or ratio < _MIN_BATCH_RATIO:
        return None
    size = subject.process.loader.get("batch_size")
    now = f" (now {size})" if size else ""
    return (
        f"a larger batch: double it{now} for as long as samples/s grow; the device memory has room for one up to "
        f"{factor(ratio)} times as large (an estimate)"
    )


def fragmentation(subject: Subject) -> str | None:
    """Return the change where the allocator had to free its cache, and much of it was never needed."""
    if subject.process.limited_by != "memory_pressure":
        return None
    configured = subject.label("torch_settings_info", "alloc_conf").replace(" ", "").lower()
    backend = subject.label("torch_settings_info", "allocator")
    share = _most(subject, "training_memory_fragmentation_ratio")
    if share is None or share < _MIN_FRAGMENTATION or backend != "native" or "expandable_segments:true" in configured:
        return None
    return f"{_EXPANDABLE}: {share:.0%} of the reserved device memory is in blocks of sizes that tensors do not have"


def growth(subject: Subject) -> str | None:
    """Return the change where the device memory is full within a day."""
    seconds = [v for _, v in subject.rows("training_memory_full_seconds") if isinstance(v, (int, float))]
    step = _most(subject, "training_memory_step_growth_bytes")
    if not seconds or step is None or min(seconds) > _SOON_SECONDS:
        return None
    return (
        f"look for tensors that are kept from step to step, such as a sum of losses without .item(): the device memory "
        f"grows by {_size(step)} in each step and is full in {_duration(min(seconds))}"
    )


def host_growth(subject: Subject) -> str | None:
    """Return the change where the memory of the cgroup is full within a day."""
    seconds = subject.value("training_host_memory_full_seconds")
    if seconds is None or seconds > _SOON_SECONDS:
        return None
    parts = {labels["part"]: v for labels, v in subject.rows("training_host_memory_growth_bytes")}
    where = "loader workers" if parts.get("children", 0.0) > parts.get("process", 0.0) else "process"
    return (
        f"look for objects that the {where} keeps: the memory of the cgroup reaches its limit in {_duration(seconds)}"
    )


def swapped(subject: Subject) -> str | None:
    """Return the change where waits for memory limit the process, and a part of it is swapped out."""
    size = subject.value("gpu_process_swapped_bytes")
    if subject.process.limited_by != "memory_swap_io" or not size or size < _MIB:
        return None
    return f"more memory for the job, or fewer loader workers: {_size(size)} of the process are swapped out"


def _most(subject: Subject, name: str) -> float | None:
    values: list[Value] = [value for _, value in subject.rows(name)]
    return max((float(v) for v in values if isinstance(v, (int, float))), default=None)


def _size(size: float) -> str:
    return f"{factor(size / _GIB)} GiB" if size >= _GIB else f"{factor(size / _MIB)} MiB"


def _duration(seconds: float) -> str:
    return f"{factor(seconds / 3600)} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"


def transfer(subject: Subject) -> str | None:
    """Return the change with the widths of the PCIe links, None if they are not known."""
    widths = [_of_gpu(subject, "gpu_pcie_width", uuid) for uuid in subject.process.devices or ()]
    known = [(found["current"], found["max"]) for found in widths if found.keys() >= {"current", "max"}]
    if not known or len(known) < len(widths):
        return None
    width, most = min(known, key=lambda pair: pair[0] / pair[1])
    if width < most:
        return f"{_PINNED}; its PCIe link has only {width:.0f} of {most:.0f} lanes: check the seating of the GPU"
    return f"{_PINNED} (its PCIe link has all {most:.0f} lanes)"


def throttled(subject: Subject) -> str | None:
    """Return what to check for the reasons that lower the clocks now, with the temperature; None without a reason."""
    reasons: list[str] = []
    for uuid in subject.process.devices or ():
        active = [
            reason for reason, value in _of_gpu(subject, "gpu_clocks_event_active", uuid, "reason").items() if value
        ]
        found = [SLOWDOWNS[reason][1] for reason in active if reason in SLOWDOWNS]
        heat = _of_gpu(subject, "gpu_temperature_celsius", uuid, "sensor").get("gpu")
        at = f", it is at {heat:.0f} °C" if heat is not None and any("thermal" in reason for reason in active) else ""
        reasons += [words + at for words in dict.fromkeys(found)]
    return f"check {' and '.join(dict.fromkeys(reasons))}" if reasons else None


def cpu_limited(subject: Subject) -> str | None:
    """Return the CPU limit and the least that the process needs, None if either is not known or it is enough."""
    limit = subject.value("gpu_process_cgroup_cpus")
    workers = whole(subject.process.loader.get("workers", ""))
    if limit is None or workers is None or limit >= 1 + workers:
        return None
    each = f" and one for each of its {workers} loader workers" if workers > 1 else ""
    each = " and one for its loader worker" if workers == 1 else each
    return f"raise its CPU limit from {digits(limit, 2)} to at least {1 + workers} CPUs: one for the training{each}"


def waiting_for_peers(subject: Subject) -> str | None:
    """Return the query that finds the slowest rank, None if the number of ranks is not known."""
    ranks, job = subject.process.world_size, subject.process.workload.get("job")
    if not ranks or ranks < 2:
        return None
    matcher = f'workload_job="{job}"' if job and _PLAIN.fullmatch(job) else f'world_size="{ranks}"'
    return f"find what limits the slowest of its {ranks} ranks; in Prometheus: {_SLOWEST_RANK.format(matcher)}"


BY_CAUSE: Mapping[str, Callable[[Subject], str | None]] = {
    "transfer": transfer,
    "throttled": throttled,
    "cpu_limited": cpu_limited,
    "waiting_for_peers": waiting_for_peers,
}
"""By cause; where it returns None, the advice of the cause holds."""


def _of_gpu(subject: Subject, name: str, uuid: str, label: str = "when") -> dict[str, float]:
    """Return the values of a family of GPUs by a label."""
    rows = subject.of_node(name)
    return {
        labels[label]: float(value)
        for labels, value in rows
        if labels.get("uuid") == uuid and isinstance(value, (int, float))
    }
