"""The recorder of stories: simulated machines, the real collectors and the real verdict, scraped in simulated time.

It adds events that the simulator does not have: batches during evaluation, out-of-memory errors, builds of torch,
restarts of the exporter, failed scrapes.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.golden_metrics import GROUPS, LIMITS, START, FreeOfCost, _answer

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import Sources
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverFacts, DriverView, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.sessions.session import Session
from gpugauge.simulator.device.world import World
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import Scenario, parse_scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.snapshot import Snapshot
from gpugauge.workload.workloads import Workloads
from qa.bench.alerts.score import NAIVE_METRIC
from qa.bench.alerts.story import Device, Expectation, Group, Story, notation

_MEMORY = "/dev/shm"
TICK, SCRAPE = 5, 15  # seconds; the verdict is evaluated every 5 s, and the driver's rings hold 10 s
_CPU_BUILD = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /opt/torch/lib/{}\n"
# The metrics that the rules read; the others are left out to keep the recordings small.
WANTED = {row.name for row in catalog.metrics()} & {
    name
    for group in rules.groups(Parameters())["groups"]
    for rule in group["rules"]
    for name in re.findall(r"\b[a-z]+_\w+", rule["expr"])
}
_ENGINES = {"decoder", "encoder", "jpeg", "memory", "ofa"}


@dataclass(frozen=True)
class Planned:
    """A story before it is recorded. `machines` are scenarios by instance; times are minutes.

    `ooms` are the times of out-of-memory errors by pid, `builds` the builds of torch by pid, `allocations` the jobs by
    index of the GPU that they were allocated, `restarts` the times at which exporters restart. Scrapes fail during
    `unreachable` and are not sent during `unscraped`; the driver does not answer during `driver_down`, and is released
    during `released`.
    """

    name: str
    description: str
    machines: Mapping[str, str]
    minutes: int = 120
    expectations: tuple[Expectation, ...] = ()
    ooms: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    builds: Mapping[int, str] = field(default_factory=dict)
    allocations: Mapping[int, str] = field(default_factory=dict)
    restarts: tuple[float, ...] = ()
    unreachable: tuple[tuple[float, float], ...] = ()
    unscraped: tuple[tuple[float, float], ...] = ()
    driver_down: tuple[tuple[float, float], ...] = ()
    released: tuple[tuple[float, float], ...] = ()


def within(minute: float, spans: tuple[tuple[float, float], ...]) -> bool:
    return any(begin <= minute < end for begin, end in spans)


class Trainings(SimulatedSessions):
    """The sessions of the simulator, with the events of the story."""

    def __init__(self, made: Scenario, planned: Planned, clock: Any) -> None:
        super().__init__(made, clock=clock)
        self._planned = planned

    def view(self) -> tuple[Session, ...]:
        return tuple(self._changed(session) for session in super().view())

    def _changed(self, session: Session) -> Session:
        process = self._trainings[session.hello.session]
        t = self._world.second(self._clock())
        errors = sum(minute * 60 <= t for minute in self._planned.ooms.get(process.pid, ()))
        snap, hello = session.snap, session.hello
        assert snap is not None
        devices = tuple(replace(device, ooms=errors) for device in snap.devices)
        build = self._planned.builds.get(process.pid)
        facts = {**hello.facts, "build": build} if build else hello.facts
        # A real evaluation loop also takes batches from a loader.
        rhythm, batches = process.activity.rhythm, snap.batches
        evaluated = rhythm.progress(t, "evaluating")
        if evaluated and batches and batches.count:
            began = rhythm.phase(t)
            last = math.floor(t) + self._world.start_unix if began[0] == "evaluating" else batches.last
            batches = replace(batches, count=batches.count + int(evaluated * 2), last=last)
        return session._replace(snap=replace(snap, devices=devices, batches=batches), hello=replace(hello, facts=facts))


class Machine:
    """A machine of the story, and the exporter on it."""

    def __init__(self, instance: str, planned: Planned, folder: Path) -> None:
        self.instance, self.planned, self._folder = instance, planned, folder
        text = dedent(planned.machines[instance])
        self._scenario = parse_scenario(f"description: {planned.name}\n{text}", f"{planned.name}/{instance}", instance)
        self.now = 0.0
        self._scenario._start |= {"monotonic": 0.0, "unix": START}
        self._jobs = folder / "jobs"
        self._jobs.mkdir()
        for index, job in planned.allocations.items():
            (self._jobs / str(index)).write_text(f"{job}\n")
        self._tree = ProcTree(folder / "proc", self._scenario)
        self.percent: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """Start a new exporter, without the state of an earlier one."""
        self._service, self._inventory = simulated_service(lambda: self.now), Inventory(LIMITS)
        self._facts = DriverFacts(
            **_answer(self._service, "open", simulate=self._scenario.simulation()).values["driver"]
        )
        node = FreeOfCost(str(self._folder / "proc"))
        self._workloads = Workloads(
            node,
            cgroup_root=self._tree.cgroup_root,
            job_mapping_dir=self._jobs if self.planned.allocations else None,
            pod_logs=self._tree.pod_logs,
            clock=lambda: self.now,
        )
        self._replies: list[Reply] = []
        self._view = DriverView(True, "ok", self._facts, (), worker_starts=1)
        trainings = Trainings(self._scenario, self.planned, lambda: self.now)
        collectors = create_collectors(Sources(node, self._workloads, trainings))
        self._sampler = Sampler(collectors, self._news, lambda _: None, 1.0)

    def _news(self) -> tuple[DriverView, tuple[Reply, ...]]:
        replies, self._replies = tuple(self._replies), []
        return self._view, replies

    def tick(self) -> Snapshot:
        """Return the snapshot of the collectors at `now`."""
        self._tree.update(self.now)
        self._show_builds()
        self._workloads.refresh()
        reasons = {"timeout": self.planned.driver_down, "released": self.planned.released}
        down = next((reason for reason, spans in reasons.items() if within(self.now / 60, spans)), None)
        if down:
            self._view = DriverView(False, down, None, (), worker_starts=1)
            self.percent.clear()
        else:
            for index in range(self._facts.device_count):
                self._read(index)
            self._view = DriverView(True, "ok", self._facts, self._inventory.devices(self.now), worker_starts=1)
        return self._sampler.tick(START + self.now, self.now)

    def _read(self, index: int) -> None:
        reply = _answer(self._service, "read", index=index, groups=list(GROUPS))
        self._inventory.apply(reply, self.now)
        uuid = self._inventory.uuid(index) or ""
        percent = reply.values.get("fast", {}).get("utilization_percent")
        self.percent.pop(uuid, None)
        if percent is not None:
            self.percent[uuid] = percent
        self._replies.append(replace(reply, uuid=uuid, received=self.now))

    def _show_builds(self) -> None:
        for pid, build in self.planned.builds.items():
            maps = self._folder / "proc" / str(pid) / "maps"
            if build == "cpu" and maps.exists():
                libraries = ("libtorch_python.so", "libtorch_cpu.so", "libc10.so")
                maps.write_text("".join(_CPU_BUILD.format(name) for name in libraries))

    def devices(self) -> dict[str, Device]:
        """Return the GPUs with the jobs that hold them at some time."""
        world = World(self._scenario.simulation())
        found = {}
        for device in world.devices:
            # A training on the CPU counts for all GPUs of the machine, because it should use them.
            held = [p for p in world.processes if device.index in p.gpus or not p.gpus]
            jobs = {match[1] for p in held if (match := re.search(r"job_(\w+)", p.cgroup))}
            found[device.uuid] = Device(instance=self.instance, jobs=tuple(sorted(jobs)))
        return found

    def close(self) -> None:
        self._service.close()


def record(planned: Planned, group: Group = "tuned") -> Story:
    """Return the recorded story."""
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    series: dict[str, dict[int, float]] = defaultdict(dict)
    devices: dict[str, Device] = {}
    seconds = planned.minutes * 60
    try:
        for instance in planned.machines:
            (folder / instance).mkdir()
            machine = Machine(instance, planned, folder / instance)
            _pass(machine, planned, series)
            devices |= machine.devices()
            machine.close()
    finally:
        shutil.rmtree(folder)
    count = seconds // SCRAPE
    # Without a scrape a series has no new sample, which is `_` for promtool.
    return Story(
        name=planned.name,
        description=planned.description,
        group=group,
        interval=SCRAPE,
        minutes=planned.minutes,
        devices=devices,
        expectations=tuple(_resolved(expectation, devices) for expectation in planned.expectations),
        series={name: _samples(values, count, planned) for name, values in sorted(series.items())},
    )


def _resolved(expectation: Expectation, devices: Mapping[str, Device]) -> Expectation:
    """Return the expectation with the uuid in place of `instance/index`."""
    instance, slash, index = expectation.labels.get("uuid", "").partition("/")
    if not slash:
        return expectation
    uuids = [uuid for uuid, device in devices.items() if device.instance == instance]
    return expectation.model_copy(update={"labels": {"uuid": uuids[int(index)]}})


def _samples(values: Mapping[int, float], count: int, planned: Planned) -> str:
    found = [values.get(i) for i in range(count)]
    first = next(i for i, value in enumerate(found) if value is not None)
    if not planned.unscraped:
        return notation(found)
    # Without scrapes Prometheus writes no staleness markers.
    text = notation(found).split(" ")
    gaps = {round(begin * 60 / SCRAPE) for begin, _ in planned.unscraped}
    at, words = 0, []
    for word in text:
        words.append("_" if word == "stale" and at in gaps and at > first else word)
        run = re.search(r"x(\d+)$", word)
        at += 1 if run is None else int(run[1]) + (not word.startswith("_x"))
    return " ".join(words)


def _pass(machine: Machine, planned: Planned, series: dict[str, dict[int, float]]) -> None:
    restarts = sorted(minute * 60 for minute in planned.restarts)
    for second in range(0, planned.minutes * 60, TICK):
        machine.now = float(second)
        if restarts and second >= restarts[0]:
            restarts.pop(0)
            machine.close()
            machine.start()
        snapshot = machine.tick()
        if second % SCRAPE or within(second / 60, planned.unscraped):
            continue
        at = second // SCRAPE
        reachable = not within(second / 60, planned.unreachable)
        series[f'up{{instance="{machine.instance}",job="gpugauge"}}'][at] = float(reachable)
        if reachable:
            _scrape(machine, snapshot, at, series)


def _scrape(machine: Machine, snapshot: Snapshot, at: int, series: dict[str, dict[int, float]]) -> None:
    for section in snapshot.sections:
        for family in section.families:
            metric = family.metric
            if metric.name not in WANTED:
                continue
            shift = START if metric.name.endswith("_timestamp_seconds") else 0.0
            for values, value in family.samples:
                if isinstance(value, (int, float)) and not _ENGINES & set(values):
                    labels = dict(zip(metric.labels, values, strict=True), instance=machine.instance)
                    series[selector(metric.name, labels)][at] = round(float(value) - shift, 3)
    # The daemon adds these metrics outside of the collectors.
    series[selector("gpugauge_snapshot_timestamp_seconds", {"instance": machine.instance})][at] = machine.now
    released = float(within(machine.now / 60, machine.planned.released))
    series[selector("gpugauge_driver_released", {"instance": machine.instance})][at] = released
    # The simulator's first percentage covers no time.
    for uuid, percent in machine.percent.items() if at else ():
        series[selector(NAIVE_METRIC, {"instance": machine.instance, "uuid": uuid})][at] = float(percent)


def selector(name: str, labels: Mapping[str, str]) -> str:
    """Return a series as Prometheus writes one, without the labels that are empty."""
    text = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()) if value)
    return f"{name}{{{text}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
