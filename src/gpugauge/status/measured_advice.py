"""Advice with values that were measured: memory, loader workers, PCIe lanes, clocks, CPU limit, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpugauge.base.text import whole
from gpugauge.driver.api import DeviceReading
from gpugauge.faults.repair import ANY_SITE, Site
from gpugauge.faults.table import SLOWDOWNS
from gpugauge.node import training
from gpugauge.node.node import Diagnosis, Gain, Judged, Memory, Node, OnDevice
from gpugauge.sessions.session import Session
from gpugauge.status.details import FOR_CPU, FOR_DATA, FOR_PEERS, waits_longest
from gpugauge.status.model import ProcessStatus
from gpugauge.status.words import digits, duration, factor, largest, percent, plural, slow_words
from gpugauge.verdict import loaders
from gpugauge.verdict.causes import CAUSES, COMPILE
from gpugauge.verdict.loader_facts import PARTS
from gpugauge.verdict.ranks import slow
from gpugauge.workload.processfiles import HostProcess

_MIN_BATCH_RATIO = 1.5  # with less room a larger batch is not worth a change
_MIN_FRAGMENTATION = 0.15
_SOON_SECONDS = 86_400.0  # until full: a growth that is slower is a fact, and no advice
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
# By part of the time of a batch: in words.
_LOADING = {
    "cpu": "on a CPU",
    "runqueue": "waiting for a CPU",
    "storage": "waiting for storage",
    "blocked": "in other waits: network, locks, sleep",
}
_NEAR = 5.0  # °C below the limit of the chip at which it slows down
_GIB, _MIB = 1 << 30, 1 << 20


class Rank(NamedTuple):
    """A rank of a distributed training."""

    rank: str
    pid: int | None
    times: float | None  # how many times as long as the median rank a slow one works
    cause: str | None  # of its load


class Subject(NamedTuple):
    """What a row may read: the status of a process, and the typed values of the node about it and its GPUs."""

    process: ProcessStatus
    session: Session | None = None
    judged: Judged | None = None
    memory: Memory | None = None
    host: HostProcess | None = None
    gpus: tuple[DeviceReading, ...] = ()
    behind: tuple[ProcessStatus, ...] = ()  # the ranks here for which the others of its job wait
    ranks: Mapping[str, Rank] = {}  # by process, those of its run here whose own work is known
    complete: bool = True  # whether all ranks of its job are here
    site: Site = ANY_SITE

    @classmethod
    def of(cls, process: ProcessStatus, node: Node, site: Site = ANY_SITE) -> Subject:
        """Return the subject with all that a node has about a process."""
        name, gpus = process.process, tuple(map(node.reading, process.devices or ()))
        session, judged, memory = node.sessions.get(name), node.judged.get(name), node.memory.get(name)
        ranks = _ranks(node, session) if session and judged and "peers" in judged.shares else {}
        return cls(process, session, judged, memory, node.hosts.get(name), gpus, ranks=ranks, site=site)

    def gain(self, cause: str) -> Gain | None:
        """Return the expected gain without a cause, None if it is not decided."""
        found = self.judged.gains.get(cause) if self.judged else None
        return self.within(cause, found) if found else None

    def within(self, cause: str, gain: Gain) -> Gain:
        """Return a gain that is no larger than the share that the views show beside it allows."""
        lost = (self.process.causes or {}).get(cause, self.process.lost_ratio)
        if self.process.state == "training_on_cpu":
            lost = self.process.data_wait_ratio if cause == "data_loading" else None
        if lost is None or lost >= 1.0:
            return gain
        most = round(1.0 / (1.0 - lost), 3)
        expected, lower, upper = (min(most, value) for value in (gain.expected, gain.lower, gain.upper))
        # What is lost counts a usual gain of the precision.
        return Gain(expected, lower, gain.upper if cause == "precision_unused" else upper, gain.next)

    @property
    def cpus(self) -> float | None:
        """The CPUs that it may use, None if they are not known."""
        known = [training.cpus(self.session)] if self.session else []
        known += [self.host.cgroup.cpus, self.host.bounds.cpus] if self.host else []
        return min((cpus for cpus in known if cpus), default=None)

    @property
    def mains(self) -> Sequence[str]:
        """The causes that the views name, the largest first; on the CPU the waits, by cause or topic of the advice."""
        main, throttled = self.process.limited_by, self.judged and "cpu_limited" in self.judged.gains
        waits = {FOR_DATA: "data_loading", FOR_PEERS: "waiting_for_peers"}
        waits[FOR_CPU] = "cpu_limited" if throttled else CROWDED
        if not main:
            return [waits[words] for words, _ in waits_longest(self.process)]
        return largest(main, self.process.causes or {}) or [main]

    def makes(self, mistake: str) -> bool:
        """Return whether the program makes a known mistake."""
        return bool(self.session and self.session.mistakes.get(mistake))

    @property
    def on_gpus(self) -> Iterable[OnDevice]:
        """The memory on each GPU."""
        return self.memory.devices.values() if self.memory else ()


CROWDED = "crowded"
"""The topic of CPUs that others use."""
FILLED_BY_BATCH = frozenset({"underfilled", "host_bound"})
"""The causes that a larger batch removes."""


def larger_batch(subject: Subject) -> tuple[str, ...] | None:
    """Return the change where the GPU has gaps or is not filled, and memory is left."""
    if not FILLED_BY_BATCH.intersection(subject.mains):
        return None
    ratio = subject.memory.batch_ratio if subject.memory else None
    if ratio is None or ratio < _MIN_BATCH_RATIO:
        return None
    size = whole(subject.process.loader.get("batch_size"))
    double = f"{2 * size} samples in place of {size}, then double it" if size else "double it"
    space = f"{float(f'{ratio * size:.2g}'):.0f}" if size else f"one {factor(ratio)} times as large"
    text = (
        f"a larger batch, with the learning rate adjusted to it: {double} for as long as samples/s grow; the device "
        f"memory has room for up to {space} (an estimate)"
    )
    if "host_bound" in subject.mains:  # first what does not change the result
        return (*COMPILE, f"then {text}")
    return text, "also fused kernels (torch.compile), or several processes on the GPU"


def fragmentation(subject: Subject) -> str | None:
    """Return the change where the allocator had to free its cache, and much of it was never needed."""
    if "memory_pressure" not in subject.mains:
        return None
    facts = subject.session.facts if subject.session else {}
    configured = facts.get("alloc_conf", "").replace(" ", "").lower()
    share = max((device.fragmentation or 0.0 for device in subject.on_gpus), default=0.0)
    if share < _MIN_FRAGMENTATION or facts.get("allocator") != "native" or "expandable_segments:true" in configured:
        return None
    return f"{_EXPANDABLE}: {share:.0%} of the reserved device memory is in blocks of sizes that tensors do not have"


def growth(subject: Subject) -> str | None:
    """Return the change where the device memory is full within a day."""
    seconds = [full for device in subject.on_gpus if (full := device.full_seconds) is not None]
    if not seconds or min(seconds) > _SOON_SECONDS:
        return None
    step = max(device.growth.expected for device in subject.on_gpus if device.growth)
    return (
        f"look for tensors that are kept from step to step, such as a sum of losses without .item(): the device memory "
        f"grows by {_size(step)} in each step and is full in {duration(min(seconds))}"
    )


def host_growth(subject: Subject) -> str | None:
    """Return the change where the memory of the cgroup is full within a day."""
    seconds = subject.memory.full_seconds if subject.memory else None
    if subject.memory is None or seconds is None or seconds > _SOON_SECONDS:
        return None
    parts = {part: growth.expected for part, growth in subject.memory.growth.items()}
    where = "loader workers" if parts.get("children", 0.0) > parts.get("process", 0.0) else "process"
    return f"look for objects that the {where} keeps: the memory of the cgroup reaches its limit in {duration(seconds)}"


def swapped(subject: Subject) -> str | None:
    """Return the change where waits for memory limit the process, and a part of it is swapped out."""
    size = subject.host.bounds.swapped if subject.host else None
    if "memory_swap_io" not in subject.mains or not size or size < _MIB:
        return None
    return f"more memory for the job, or fewer loader workers: {_size(size)} of the process are swapped out"


def _size(size: float) -> str:
    return f"{factor(size / _GIB)} GiB" if size >= _GIB else f"{factor(size / _MIB)} MiB"


def diagnosed_change(subject: Subject, found: Diagnosis) -> str:
    """Return what to change by a diagnosis, the options of the loader, and how its batches were loaded."""
    options, loader = subject.process.loader, training.loader(subject.session) if subject.session else None
    if found.reason == loaders.BUSY_CPUS:
        return crowded(subject)
    if found.reason in loaders.CHANGES:
        return loaders.CHANGES[found.reason]
    present, recommended, slow = options.get("workers", ""), found.workers, ""
    if found.reason == loaders.SLOW_BATCHES and loader and loader.measured:
        parts = {words: PARTS[part](loader) or 0.0 for part, words in _LOADING.items()}
        total = sum(parts.values())
        each = ", ".join(f"{percent(part / total)} {words}" for words, part in parts.items() if part >= total / 200)
        slow = f": a batch takes {duration(total / loader.measured)} to load ({each})" if total else ""
        if parts[_LOADING["runqueue"]] > total / 2:
            return f"more CPUs, not more loader workers{slow}"
    if found.reason == loaders.SLOW_BATCHES and present == str(recommended):
        return f"make the dataset faster{slow}, and {present} loader workers are enough for this machine"
    text = f"num_workers={recommended} in the DataLoader (now {present})"
    if whole(present) is None:  # not a loader of torch
        text = f"load the batches in other processes: DataLoader with num_workers={recommended}"
    return text + loaders.MORE.get(found.reason, "") + slow


def data_loading(subject: Subject) -> str | tuple[str, ...]:
    """Return all that is not already so, without a diagnosis. Where a CPU is missing, another worker waits, too."""
    options, on_gpu = subject.process.loader, subject.process.state != "training_on_cpu"
    if not on_gpu and {CROWDED, "cpu_limited"}.intersection(subject.mains):
        return cpu_limited(subject) or crowded(subject)
    workers = options.get("workers")
    most = loaders.most_workers(subject.cpus)
    found = [f"more loader workers (now {workers})"] if 0 < (whole(workers) or 0) < most else []
    first = "load batches in workers: num_workers=2 in the DataLoader (now 0), then double it while samples/s grow"
    found += [first] if workers == "0" else []
    found += ["more loader workers"] if workers is None else []
    # The mistake has its own advice.
    if on_gpu and not subject.makes("pageable_batches") and options.get("pin_memory") != "yes":
        found.append("pinned memory (pin_memory=True)" if options.get("pin_memory") else "pinned memory")
    if not options.get("prefetch") and workers != "0":  # without workers there is no prefetching
        found.append("prefetching")
    first, *more = [*found, "faster storage or decoding"]
    return (first, f"also {', '.join(more)}") if more else first


def transfer(subject: Subject) -> str | None:
    """Return the change with the widths of the PCIe links, None if they are not known."""
    widths = [(gpu.pcie_width, gpu.pcie_width_max) for gpu in subject.gpus]
    known = [(width, most) for width, most in widths if width is not None and most is not None]
    if not known or len(known) < len(widths):
        return None
    width, most = min(known, key=lambda pair: pair[0] / pair[1])
    pinned = {"no": "pin_memory=True in the DataLoader (now off), and ", "yes": ""}
    text = pinned.get(subject.process.loader.get("pin_memory", ""), "pin_memory=True in the DataLoader, and ")
    text += "non_blocking=True where batches are copied to the GPU"
    if width < most:
        return f"{text}; its PCIe link has only {width} of {most} lanes: have it repaired (GpuPcieDegraded)"
    return text


def throttled(subject: Subject) -> str | None:
    """Return what to check for the reasons that lower the clocks now, with the temperature; None without a reason."""
    checks, gpus = list[str](), list[str]()
    for gpu in subject.gpus:
        active = [reason for reason in gpu.clocks_event_reasons or () if reason in SLOWDOWNS]
        checks += [SLOWDOWNS[reason][1] for reason in active]
        heat, most = gpu.temperature_celsius, gpu.temperature_gpu_max_celsius or gpu.temperature_slowdown_celsius
        at = ""
        if heat is not None and any("thermal" in reason for reason in active):
            cool = " (its memory may be hotter)" * (heat < (most or 0.0) - _NEAR)
            at = f" at {heat:.0f} °C" + (f" of {most:.0f}{cool}" if most else "")
        reasons = ", ".join(SLOWDOWNS[reason][0] for reason in active)
        gpus += [f"GPU {gpu.index} lowers its clocks{at}: {reasons}"] if active else []
    return f"have {' and '.join(dict.fromkeys(checks))} checked: {'; '.join(gpus)}" if gpus else None


def crowded(subject: Subject) -> str:
    """Return what lets a process run that waits for a CPU: the CPUs that it has, and what its own threads need."""
    facts = subject.session.facts if subject.session else {}
    threads, workers = (
        max(1, whole(facts.get("torch_threads", "")) or 1),
        whole(subject.process.loader.get("workers", "")),
    )
    if subject.cpus is None or workers is None:
        return loaders.CHANGES[loaders.BUSY_CPUS]
    need, has = threads + workers, f"{digits(subject.cpus, 2)} CPU{'' if subject.cpus == 1 else 's'}"
    own = f"its {plural(threads, 'thread')} and {plural(workers, 'loader worker')} need {need}"
    if need <= subject.cpus:
        return f"fewer programs on the {has} that it may use, or more CPUs: {own}, and other programs use them, too"
    return f"at least {plural(need, 'CPU')} in place of {has}, or fewer threads and loader workers: {own}"


def cpu_limited(subject: Subject) -> str | None:
    """Return the CPU limit and the least that the process needs, None if either is not known or it is enough."""
    limit = subject.host.cgroup.cpus if subject.host else None
    workers = whole(subject.process.loader.get("workers"))
    if limit is None or workers is None or limit >= 1 + workers:
        return None
    each = f" and one for each of its {workers} loader workers" if workers > 1 else ""
    each = " and one for its loader worker" if workers == 1 else each
    return f"raise its CPU limit from {digits(limit, 2)} to at least {1 + workers} CPUs: one for the training{each}"


def waiting_for_peers(subject: Subject) -> str | None:
    """Return how to find the slowest rank, None if the number of ranks is not known."""
    ranks = subject.process.world_size
    if not ranks or ranks < 2:
        return None
    if late := [rank for rank in subject.ranks.values() if rank.times]:
        first = max(late, key=lambda rank: rank.times or 0.0)
        which = f"rank {first.rank}" + (f" and {plural(len(late) - 1, 'other')}" if late[1:] else "")
        why = f" and {CAUSES[first.cause].phrase}" if first.cause in CAUSES.keys() - {"unknown"} else ""
        shown = f": {subject.site.command(f'doctor {first.pid}')}" if first.pid else ""
        return f"make {which} faster: it {slow_words(first.times or 0.0, ranks)}{why}{shown}"
    if len(subject.ranks) == ranks:
        text = f"none of its {ranks} ranks is slow for long: they are late in turn, or their collectives are slow"
        return f"{text}; NCCL_DEBUG=INFO shows how the GPUs are connected"
    return f"find the slow one of its {ranks} ranks: the one that does not wait, {subject.site.on_nodes('status')}"


def _ranks(node: Node, session: Session) -> dict[str, Rank]:
    """Return by process the living ranks of the run of a session whose own work is known."""
    run, found = training.run(session), dict[str, tuple[Session, Judged]]()
    for process, each in node.sessions.items() if run else ():
        judged = node.judged.get(process)
        if each.connected and judged and "peers" in judged.shares and training.run(each) == run:
            found[process] = each, judged
    late = slow({process: 1.0 - judged.shares["peers"] for process, (_, judged) in found.items()})
    return {
        process: Rank(each.facts.get("rank", "?"), each.peer_pid or None, late.get(process), judged.verdict.limited_by)
        for process, (each, judged) in found.items()
    }


BY_CAUSE: Mapping[str, Callable[[Subject], str | tuple[str, ...] | None]] = {
    "data_loading": data_loading,
    "transfer": transfer,
    "throttled": throttled,
    "cpu_limited": cpu_limited,
    "waiting_for_peers": waiting_for_peers,
}
"""By cause; where it returns None, the advice of the cause holds."""
