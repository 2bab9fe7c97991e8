"""Drawn lives of jobs as series of a Prometheus, with what they held and lost computed apart.

The truth is the time of each process by its plan. A counter is that time since the exporter began, as its scrapes see
it: exporters restart and are scraped under another address then, scrapes fail for minutes, two servers scrape at
different moments, ranks are replaced.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from gpugauge.report.source import Range, Series

CAUSES = ("data_loading", "host_bound", "unknown")
LINGER = 300  # seconds for which an exporter keeps the counters of an ended process
KIND = "slurm"
BUSY = 0.4  # of the time in which a process runs


@dataclass
class Plan:
    """A process: when it runs, its GPUs, and from which moments on which share is lost to each cause."""

    process: str
    node: str
    rank: int
    begin: int
    end: int
    gpus: int
    shares: list[tuple[int, dict[str, float]]]

    def held(self, a: float, b: float) -> float:
        return self.gpus * max(0.0, min(b, self.end) - max(a, self.begin))

    def lost(self, cause: str, a: float, b: float) -> float:
        moments = [*(moment for moment, _ in self.shares), self.end]
        return sum(
            share.get(cause, 0.0) * self.held(max(a, moment), min(b, moments[at + 1]))
            for at, (moment, share) in enumerate(self.shares)
            if min(b, moments[at + 1]) > max(a, moment)
        )


@dataclass
class World:
    """The series, and the truth in GPU seconds: held, lost by cause, and what no scrape can have seen."""

    job: str
    interval: int
    series: list[Series] = field(default_factory=list)
    held: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)
    unseen: float = 0.0
    joules: float = 0.0
    begin: int = 0
    end: int = 0
    restarts: int = 0
    ranks: int = 0


def drawn(seed: int, now: int, longest: int = 30_000) -> World:
    """Draw a job that ended an hour before `now`, or earlier, of at most so many seconds."""
    draw = random.Random(seed)
    world = World(f"{4000 + seed}", draw.choice((5, 15, 15, 30, 60)))
    length = min(longest, draw.choice((300, 1800, 7200, 30_000)))
    world.end = now - 3600 - draw.randrange(7200)
    world.begin = world.end - length
    servers = ["a", "b"] if seed % 3 == 0 else ["a"]
    nodes = [f"node-{seed}-{n}:10478" for n in range(draw.choice((1, 1, 2, 3)))]
    rank = 0
    for node in nodes:
        restarts = sorted(world.begin + round(draw.random() * length) for _ in range(draw.choice((0, 0, 1, 2))))
        world.restarts += len(restarts)
        gaps = (
            [(at := world.begin + draw.randrange(length), at + draw.randrange(30, 200))] if draw.random() < 0.4 else []
        )
        moved = draw.random() < 0.5  # a restarted exporter is another target
        pods = [(start, f"exporter-{at if moved else 0}") for at, start in enumerate([0, *restarts])]
        plans: list[Plan] = []
        for _ in range(draw.choice((1, 2, 4))):
            plans += _ranks(draw, world, node, rank)
            rank += 1
            world.ranks = rank
        for plan in plans:
            world.held += plan.held(0, now)
            world.lost.update({cause: plan.lost(cause, 0, now) for cause in CAUSES})
        for uuid, watts in {f"GPU-{node}-{plan.rank}": draw.randrange(100, 700) for plan in plans}.items():
            own = [plan for plan in plans if f"GPU-{node}-{plan.rank}" == uuid]
            world.joules += watts * sum(plan.end - plan.begin for plan in own)
            _energy(world, node, uuid, watts, servers, own, pods)
        unseen = [_scraped(draw, world, node, server, plans, pods, gaps) for server in servers]
        world.unseen += sum(max(each) for each in zip(*unseen, strict=True))
    return world


def _ranks(draw: random.Random, world: World, node: str, rank: int) -> Iterator[Plan]:
    """Yield the processes of a rank, one after the other."""
    begin, gpus = world.begin, 1
    while begin < world.end:
        end = world.end if draw.random() < 0.7 else min(world.end, begin + draw.randrange(60, 4000))
        moments = sorted({begin, *(draw.randrange(begin, end + 1) for _ in range(draw.randrange(3)))})
        shares = []
        for moment in moments:
            cuts = sorted(draw.random() for _ in CAUSES)
            parts = [cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1]]
            shares.append((moment, {c: p for c, p in zip(CAUSES, parts, strict=True) if draw.random() < 0.8}))
        yield Plan(f"{draw.getrandbits(48):012x}", node, rank, begin, end, gpus, shares)
        begin = end + draw.randrange(5, 60)
        if world.end - begin < 30:
            return


def _scraped(
    draw: random.Random,
    world: World,
    node: str,
    server: str,
    plans: list[Plan],
    pods: list[tuple[int, str]],
    gaps: list[tuple[int, int]],
) -> list[float]:
    """Append what a server scrapes of a node; return the GPU seconds of each process that it cannot have seen."""
    starts = [start for start, _ in pods]
    phase = draw.randrange(world.interval)
    scrapes = [
        moment
        for moment in range(world.begin - world.interval + phase, world.end + LINGER, world.interval)
        if not any(a <= moment < b for a, b in gaps) and draw.random() > 0.02
    ]
    known: defaultdict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)

    def put(moment: int, value: float, **labels: str) -> None:
        place = {"instance": node, "replica": server, "job": "gpugauge", "pod": _pod(pods, moment)}
        known[tuple(sorted({**place, **labels}.items()))].append((moment, value))

    every = []
    for plan in plans:
        unseen = 0.0
        seen = [moment for moment in scrapes if plan.begin < moment < plan.end + LINGER]
        for moment in seen:
            start = max(start for start in starts if start <= moment)
            if start >= plan.end:
                continue  # the exporter began after it
            put(moment, plan.held(start, moment), __name__="training_gpu_held_seconds_total", process=plan.process)
            for cause in CAUSES:
                if (lost := plan.lost(cause, start, moment)) or cause == "unknown":
                    put(moment, lost, __name__="training_lost_seconds_total", process=plan.process, cause=cause)
            spent = min(moment, plan.end) - max(start, plan.begin)
            put(moment, spent, __name__="training_seconds_total", process=plan.process, state="training")
            put(moment, 1, __name__="torch_process_info", process=plan.process, rank=str(plan.rank), **_job(world))
            if moment < plan.end:
                put(moment, 1e9, __name__="gpu_process_memory_used_bytes", process=plan.process, uuid=_uuid(plan))
            else:
                put(moment, 1, __name__="training_end_info", process=plan.process, reason="finished", exit_code="0")
        for at, start in enumerate(starts):
            until = starts[at + 1] if at + 1 < len(starts) else plan.end + LINGER
            last = max((moment for moment in seen if start <= moment < until), default=start)
            unseen += plan.held(last, until)
            after = min((moment for moment in seen if moment >= until), default=None)
            if after is not None and last > start and at + 1 < len(starts):
                # A counter that is higher after a restart than before shows none, and one that is absent after it may
                # be late. What is missed so is no more than what the first scrape after the restart has.
                last_start = max(each for each in starts if each <= after)
                before, now = (
                    [plan.held(a, b), *(plan.lost(c, a, b) for c in CAUSES)]
                    for a, b in ((start, last), (last_start, after))
                )
                unseen += before[0] if all(a <= b or not b for a, b in zip(before, now, strict=True)) else 0.0
        every.append(unseen)
    world.series += [Series(dict(labels), points) for labels, points in known.items()]
    return every


def _pod(pods: list[tuple[int, str]], moment: int) -> str:
    return max((start, name) for start, name in pods if start <= moment)[1]


def _job(world: World) -> dict[str, str]:
    return {"workload_job_kind": KIND, "workload_job": world.job, "command": "train.py"}


def _uuid(plan: Plan) -> str:
    return f"GPU-{plan.node}-{plan.rank}"


def _energy(
    world: World,
    node: str,
    uuid: str,
    watts: int,
    servers: list[str],
    plans: list[Plan],
    pods: list[tuple[int, str]],
) -> None:
    """Append the energy of a GPU, which uses nothing while no process runs."""
    moments = range(world.begin - 600, world.end + 600, world.interval)
    for server, pod in product(servers, sorted({pod for _, pod in pods})):
        labels = {"instance": node, "uuid": uuid, "replica": server, "job": "gpugauge", "pod": pod}
        own = [t for t in moments if _pod(pods, t) == pod]
        ran = [(float(t), float(sum(plan.held(0, t) for plan in plans))) for t in own]
        for name, points, more in (
            ("gpu_energy_joules_total", [(t, 1e6 + watts * seconds) for t, seconds in ran], {}),
            ("gpu_info", [(t, 1.0) for t, _ in ran], {"name": "NVIDIA H200", "index": uuid[-1]}),
            ("gpu_memory_total_bytes", [(t, 4e9) for t, _ in ran], {}),
            ("gpu_busy_seconds_total", [(t, BUSY * seconds) for t, seconds in ran], {"engine": "gpu"}),
            ("gpu_observed_seconds_total", [(t, t - world.begin + 600) for t, _ in ran], {"engine": "gpu"}),
        ):
            world.series.append(Series({**labels, "__name__": name, **more}, points))


@dataclass
class Double:
    """The series of worlds behind the methods of report.source.Prometheus."""

    series: list[Series]
    warnings: set[str] = field(default_factory=set)

    def counts(self, name: str, _matcher: str, span: Range) -> list[Series]:
        found = self._found([name], "__name__", [name], span)
        return [Series(series.labels, [(span.end, float(len(series.points)))]) for series in found]

    def counters(self, names: list[str], label: str, values: list[str], span: Range) -> list[Series]:
        return self._found(names, label, values, span)

    def gauges(self, names: list[str], label: str, values: list[str], span: Range) -> list[Series]:
        return self._found(names, label, values, span)

    def present(self, _name: str, _processes: list[str], _at: float) -> set[str]:
        return set()

    def step(self, _span: Range) -> int:
        return 60

    def _found(self, names: list[str], label: str, values: list[str], span: Range) -> list[Series]:
        first = span.end - span.seconds
        of = [s for s in self.series if s.labels["__name__"] in names and s.labels.get(label) in values]
        cut = [Series(s.labels, [point for point in s.points if first < point[0] <= span.end]) for s in of]
        return [series for series in cut if series.points]


def labels_of(series: Series) -> Mapping[str, str]:
    """Return the labels without the name."""
    return {key: value for key, value in series.labels.items() if key != "__name__"}
