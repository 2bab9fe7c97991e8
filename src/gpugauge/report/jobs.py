"""Jobs and their processes, from the series of a server."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpugauge.exposition.trainings import BUSY, COUNTERS, ENERGY, GAUGES, INFO, MEMORY, OBSERVED, OWNERS, TOTAL
from gpugauge.report.counters import Rise, once, rises
from gpugauge.report.facts import Facts
from gpugauge.report.model import JobId
from gpugauge.report.source import Prometheus, Range, Series, quoted
from gpugauge.workload.job import KINDS

_LISTED = 10


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


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its product and index, what its counters rose by, and when each process held memory of it."""

    product: str
    index: str
    memory: float | None
    counters: Mapping[str, Sequence[Rise]]
    users: Mapping[str, tuple[float, float]]
    step: float  # seconds by which these times may be wrong

    def joules(self, begin: float, end: float, ours: Iterable[str]) -> float | None:
        """Return the energy in a range of time, None if it is not known, or that of other programs, too."""
        others = [self.users[process] for process in self.users.keys() - set(ours)]
        alone = not any(a + self.step < end and b - self.step > begin for a, b in others)
        return self._within(ENERGY, begin, end) if alone else None

    def busy(self, begin: float, end: float) -> float | None:
        """Return the share of a range of time in which kernels ran, None if it is not known."""
        observed = self._within(OBSERVED, begin, end)
        return (self._within(BUSY, begin, end) or 0.0) / observed if observed else None

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
    span: Range

    def of(self, process: str) -> list[tuple[str, str]]:
        """Return the GPUs of a process."""
        node = self.owners[process].node
        return [(node, uuid) for (uuid,) in sorted(self.facts[process].of(MEMORY)) if (node, uuid) in self.devices]


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
    for metric in OWNERS:
        most: dict[str, float] = {}
        known = {}
        for series in source.counts(metric, matcher, span):
            labels = series.labels
            process, count = labels.get("process", ""), series.points[0][1]
            if process and count > most.get(process, 0.0):
                job = JobId(*(labels.get(f"workload_{key}", "") for key in ("job_kind", "namespace", "job")))
                user, command = (
                    labels.get("workload_user", ""),
                    labels.get("workload_command", labels.get("command", "")),
                )
                most[process], known[process] = count, Owner(job, user, labels.get("instance", ""), command)
        found = known | found
    return found


def chosen(found: Mapping[str, Owner], name: str) -> JobId:
    """Return the job with this name. Raises ReportError if there is none, or more than one."""
    jobs = sorted({owner.job for owner in found.values() if owner.job.is_called(name)})
    if len(jobs) == 1:
        return jobs[0]
    if not jobs:
        raise NoJobError(f"no process of a job {name} has series in this time; --since looks further back")
    whose = {owner.job: owner for owner in found.values()}
    lines = [
        f"    {job.text}  ({', '.join(filter(None, (whose[job].user, whose[job].command)))} on {whose[job].node})"
        for job in jobs[:_LISTED]
    ] + ["    …"] * (len(jobs) > _LISTED)
    raise ReportError("\n".join([f"{len(jobs)} jobs are called {name}; write one of these in full:", *lines]))


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
        return Found(found, {}, {}, span)
    narrow = Range(min(f.begin for f in alive.values()), min(span.end, max(f.last_seen for f in alive.values()) + 1))
    for series in source.gauges(gauges, "process", sorted(alive), narrow):
        of[series.labels.get("process", "")].append(series)
    facts = {process: Facts(of[process], span.start) for process in alive}
    return Found(found, facts, _devices(source, [each for process in facts for each in of[process]], narrow), narrow)


def _devices(source: Prometheus, series: Iterable[Series], span: Range) -> dict[tuple[str, str], Device]:
    uuids = sorted({each.labels.get("uuid", "") for each in series if each.name == MEMORY})
    info: dict[tuple[str, str], Mapping[str, str]] = {}
    memory: dict[tuple[str, str], float] = {}
    users: defaultdict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    counted: defaultdict[tuple[str, str], list[Series]] = defaultdict(list)
    for each in source.gauges([INFO, TOTAL, MEMORY], "uuid", uuids, span):
        if each.name == INFO:
            info[_place(each)] = each.labels
        elif each.name == TOTAL:
            memory[_place(each)] = each.points[-1][1]
        else:
            users[_place(each)][each.labels.get("process", "")] = each.points[0][0], each.points[-1][0]
    for each in source.counters([ENERGY, BUSY, OBSERVED], "uuid", uuids, span):
        if each.labels.get("engine", "gpu") == "gpu":
            counted[_place(each)].append(each)
    found = {}
    for place in users:
        rose = {key[0]: rises(points, span.start) for key, points in once(counted[place]).items()}
        labels = info.get(place, {})
        of = labels.get("name", ""), labels.get("index", ""), memory.get(place), rose
        found[place] = Device(*of, users[place], source.step(span))
    return found


def _place(series: Series) -> tuple[str, str]:
    return series.labels.get("instance", ""), series.labels.get("uuid", "")


def of_job(source: Prometheus, name: str, span: Range) -> tuple[JobId, Found]:
    """Return a job and all that is known of it. Raises RequestError or ReportError."""
    found = owners(source, span, name)
    job = chosen(found, name)
    ours = {process: owner for process, owner in found.items() if owner.job == job}
    known = read(source, ours, span, COUNTERS, GAUGES)
    if not known.facts:
        raise NoJobError(f"{job.words} has no counters of a training in this time; --since looks further back")
    return job, known
