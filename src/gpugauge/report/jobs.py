"""Jobs and their processes, from the series of a server."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpugauge.base.text import whole
from gpugauge.exposition import trainings as names
from gpugauge.report.counters import Facts, Rise, once, rises
from gpugauge.report.model import JobId
from gpugauge.report.source import Prometheus, Range, Series, quoted
from gpugauge.status.words import plural
from gpugauge.workload.job import KINDS, called

_LISTED = 10
_OVER_LIMIT = 2.0  # of its power limit, what no board uses from one sample to the next
_MOST_WATTS = 10_000.0  # where the limit is not known


class ReportError(Exception):
    """A report that cannot be written, in sentences."""


class NoJobError(ReportError):
    """There is no such job, or nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The job of a process, and who it is."""

    job: JobId
    user: str
    node: str
    command: str
    pid: str = ""
    ranks: int = 0  # of its job, 0 if that is not known


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its product and index, what its counters rose by, and when each process held memory of it."""

    product: str
    index: str
    memory: float | None
    watts: float | None  # its power limit
    counters: Mapping[str, Sequence[Rise]]
    users: Mapping[str, tuple[float, float]]
    step: float  # seconds by which these times may be wrong

    def joules(self, begin: float, end: float, ours: Iterable[str]) -> float | None:
        """Return the energy in a range of time, None if it is not known, or that of other programs, too."""
        others = [self.users[process] for process in self.users.keys() - set(ours)]
        alone = not any(a + self.step < end and b - self.step > begin for a, b in others)
        return self._within(names.ENERGY, begin, end) if alone else None

    def busy(self, begin: float, end: float) -> float | None:
        """Return the share of a range of time in which kernels ran, None if it is not known."""
        observed = self._within(names.OBSERVED, begin, end)
        return (self._within(names.BUSY, begin, end) or 0.0) / observed if observed else None

    def _within(self, name: str, begin: float, end: float) -> float | None:
        # What a counter had at its first sample is not of this time.
        parts = [
            rise.amount * max(0.0, min(end, rise.end) - max(begin, rise.begin)) / (rise.end - rise.begin)
            for rise in self.counters.get(name, ())
            if rise.end > rise.begin
        ]
        return sum(parts) if parts else None


@dataclass(frozen=True, slots=True)
class Found:
    """What a server knows of processes and of their GPUs, these by node and uuid."""

    owners: Mapping[str, Owner]
    facts: Mapping[str, Facts]
    devices: Mapping[tuple[str, str], Device]
    simulated: bool = False  # whether GPUs of a node do not exist
    present: frozenset[str] = frozenset()  # the processes that their exporters had in their last scrapes

    def of(self, process: str) -> list[tuple[str, str]]:
        """Return the GPUs of a process."""
        node = self.owners[process].node
        return [
            (node, uuid) for (uuid,) in sorted(self.facts[process].of(names.MEMORY)) if (node, uuid) in self.devices
        ]


def owners(source: Prometheus, span: Range, name: str = "") -> dict[str, Owner]:
    """Return the processes of all jobs with this name, or of all jobs. Raises RequestError."""
    matcher = 'workload_job!=""'
    if name:
        # A job has the namespace, the host or the user before what people call it.
        tail = re.escape(name.partition(" in ")[0].rpartition("/")[2].rpartition(" ")[2])
        head, _, rest = tail.partition(":")
        tail = rest if head in KINDS else tail
        matcher = f"workload_job=~{quoted(f'(.*[/ ])?{tail}(-[0-9a-f-]+)?')}"
    found: dict[str, Owner] = {}
    for metric in names.OWNERS:
        by_count = sorted(source.counts(metric, matcher, span), key=lambda series: series.points[0][1])
        for process, new in {series.labels.get("process", ""): _owner(series.labels) for series in by_count}.items():
            old = found.get(process, new)
            found[process] = replace(old, pid=old.pid or new.pid, ranks=old.ranks or new.ranks)
    found.pop("", None)
    return found


def _owner(labels: Mapping[str, str]) -> Owner:
    job = JobId(*(labels.get(f"workload_{key}", "") for key in ("job_kind", "namespace", "job")))
    command = labels.get("workload_command", labels.get("command", ""))
    ranks = whole(labels.get("world_size")) or 0
    return Owner(
        job, labels.get("workload_user", ""), labels.get("instance", ""), command, labels.get("pid", ""), ranks
    )


def chosen(found: Mapping[str, Owner], name: str) -> JobId | None:
    """Return the job with this name, None if it can only be that of a program. Raises ReportError if it is that of
    several.
    """
    whose = {owner.job: owner for owner in found.values()}
    if whole_name := [job for job in whose if job.text == name]:
        return whole_name[0]
    jobs = sorted(job for job in whose if name in called(job.kind, job.namespace, job.name))
    # A launch is called by what it started: each of its program has another one.
    if all(job.kind == "launch" and any(o.job == job and o.command == name for o in found.values()) for job in jobs):
        return None
    if len(jobs) == 1:
        return jobs[0]
    raise ReportError(f"{len(jobs)} jobs are called {name}; write one of these in full:{_listed(jobs, whose)}")


def _listed(jobs: Sequence[JobId], whose: Mapping[JobId, Owner]) -> str:
    who = [(job.text, ", ".join(filter(None, (whose[job].user, whose[job].command)))) for job in jobs[:_LISTED]]
    lines = [f"    {name}  ({of} on {whose[job].node})" for job, (name, of) in zip(jobs, who, strict=False)]
    return "\n".join(["", *lines, *["    …"] * (len(jobs) > _LISTED)])


def read(
    source: Prometheus, found: Mapping[str, Owner], span: Range, counters: Sequence[str], gauges: Sequence[str]
) -> Found:
    """Return what the server knows of these processes. Raises RequestError."""
    of: defaultdict[str, list[Series]] = defaultdict(list)
    for series in source.counters(counters, "process", sorted(found), span):
        of[series.labels.get("process", "")].append(series)
    first = {process: Facts(series, span.start) for process, series in of.items()}
    alive = {process: facts for process, facts in first.items() if facts.seconds}
    if not alive:
        return Found(found, {}, {})
    narrow = Range(min(f.begin for f in alive.values()), min(span.end, max(f.last_seen for f in alive.values()) + 1))
    for series in source.gauges(gauges, "process", sorted(alive), narrow):
        of[series.labels.get("process", "")].append(series)
    facts = {process: Facts(of[process], span.start) for process in alive}
    devices = _devices(source, [each for process in facts for each in of[process]], narrow)
    nodes = {each.labels.get("instance", "") for each in source.counts(names.BUILD, 'simulated="true"', narrow)}
    present = frozenset(source.present(names.SECONDS, sorted(facts), span.end))
    return Found(found, facts, devices, any(found[process].node in nodes for process in facts), present)


def _devices(source: Prometheus, series: Iterable[Series], span: Range) -> dict[tuple[str, str], Device]:
    uuids = sorted({each.labels.get("uuid", "") for each in series if each.name == names.MEMORY})
    of: defaultdict[tuple[str, str], list[Series]] = defaultdict(list)
    found = source.gauges([names.INFO, names.TOTAL, names.POWER_LIMIT, names.MEMORY], "uuid", uuids, span)
    for each in [*found, *source.counters([names.ENERGY, names.BUSY, names.OBSERVED], "uuid", uuids, span)]:
        if each.labels.get("engine", "gpu") == "gpu":
            of[each.labels.get("instance", ""), each.labels.get("uuid", "")].append(each)
    devices = {place: _device(series, span, source.step(span)) for place, series in of.items()}
    return {place: device for place, device in devices.items() if device.users}


def _device(series: Sequence[Series], span: Range, step: float) -> Device:
    info = {each.name: each for each in series if each.name in {names.INFO, names.TOTAL, names.POWER_LIMIT}}
    labels = info[names.INFO].labels if names.INFO in info else {}
    memory, watts = (info[name].points[-1][1] if name in info else None for name in (names.TOTAL, names.POWER_LIMIT))
    limits = [value for _, value in info[names.POWER_LIMIT].points] if names.POWER_LIMIT in info else []
    most = _OVER_LIMIT * max(limits) if limits else _MOST_WATTS
    counted = once(each for each in series if each.name in {names.ENERGY, names.BUSY, names.OBSERVED})
    rose = {key[0]: rises(points, span.start) for key, points in counted.items()}
    # The driver counts energy since it was loaded: a fall to more than can have been used since is no reset of it.
    rose |= {n: [r for r in rose[n] if r.amount <= most * (r.end - r.begin)] for n in {names.ENERGY} & rose.keys()}
    held: defaultdict[str, list[float]] = defaultdict(list)
    for each in series:
        held[each.labels.get("process", "")] += (
            [second for second, _ in each.points] if each.name == names.MEMORY else []
        )
    users = {process: (min(seconds), max(seconds)) for process, seconds in held.items() if seconds}
    return Device(labels.get("name", ""), labels.get("index", ""), memory, watts, rose, users, step)


def of_job(source: Prometheus, name: str, span: Range) -> tuple[JobId, Found]:
    """Return a job, or the part of the last one that ran a program, and all that is known of it. Raises RequestError or
    ReportError.
    """
    return last_of(source, name, span, 1)[0]


def last_of(source: Prometheus, name: str, span: Range, most: int) -> list[tuple[JobId, Found]]:
    """Return the same, of a program the parts of `most` jobs at most, the last one first."""
    found = owners(source, span, name)
    if job := chosen(found, name):
        ours = {process: owner for process, owner in found.items() if owner.job == job}
        known = read(source, ours, span, names.COUNTERS, names.GAUGES)
        if not known.facts:
            seen = ", ".join(sorted({f"{owner.command} on {owner.node}" for owner in ours.values()})[:_LISTED])
            what = "has no counters of a training: no scrape found one of its processes training"
            raise NoJobError(f"{job.words} {what}, on a GPU or with the hook ({seen})")
        return [(job, known)]
    ran = {process: owner for process, owner in owners(source, span).items() if owner.command == name}
    begun = {process: facts.begin for process, facts in read(source, ran, span, (names.SECONDS,), ()).facts.items()}
    by_job = dict[JobId, dict[str, Owner]]()
    for process in sorted(begun, key=begun.__getitem__, reverse=True):
        by_job.setdefault(ran[process].job, {})[process] = ran[process]
    if not by_job:
        raise NoJobError(f"no job is called {name} in this time; --since looks further back")
    if most == 1 < len(by_job):
        others = plural(len(by_job) - 1, "other job")
        source.warnings.add(f"{name} also ran in {others}: this is the one that ran it last.")
    last = list(by_job.items())[:most]
    return [(job, read(source, ours, span, names.COUNTERS, names.GAUGES)) for job, ours in last]
