"""A daemon in virtual time whose driver answers badly: supervisor, worker, collectors and status, second by second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.driver.fakeworker import FakeWorker, Node
from tests.golden_metrics import FreeOfCost
from tests.simulation import scenario, status

from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import Sources as Machine
from gpugauge.daemon.assembly import READING_INTERVALS
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver import client, inventory, reader, roster, supervisor
from gpugauge.driver.api import Group, Reply
from gpugauge.driver.client import Worker, WorkerHangsError
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.recycling import RecyclingLimits
from gpugauge.driver.supervisor import Supervisor
from gpugauge.simulator.device import faults
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.worker import service
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.workload.workloads import Workloads

START = 1_790_000_000.0  # Unix time
_DEADLINE = 2.0
COLLECTORS = frozenset(
    ("device", "utilization", "profiling", "clocks", "health", "links", "mig", "events", "faults", "process", "driver")
)
_TIMED = (client, inventory, reader, roster, supervisor, faults)


class Hang(BaseException):
    """A call does not return."""


class Moment:
    """What the daemon shows at a second: the snapshot, and the status."""

    def __init__(self, second: float, snapshot: Snapshot, facts: dict[str, Any]) -> None:
        self.second, self.snapshot, self.facts = second, snapshot, facts
        families = [family for section in snapshot.sections for family in section.families]
        self._samples = {family.metric.name: dict(family.samples) for family in families}

    def of(self, name: str) -> Mapping[tuple[str, ...], Any]:
        """Return the samples of a family by labels."""
        return self._samples.get(name, {})

    def gpu(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = next(g for g in self.facts["gpus"] if g["index"] == index)
        return found


class _Worker(FakeWorker):
    """Serves the simulated library in this thread."""

    def __init__(self, clock: Any, simulate: dict[str, Any]) -> None:
        super().__init__(Node())
        self._service, self._simulate = service(clock), simulate

    def receive(self, number: int, deadline: float) -> Reply:
        op, arguments = self.requests[number - 1]
        request = {"id": number, "op": op, **arguments}
        try:
            return self._service.answer(request | ({"simulate": self._simulate} if op == "open" else {}))
        except Hang:
            raise WorkerHangsError("no reply") from None

    def end(self, *, graceful: bool = True, grace_seconds: float = 0.3) -> bool:
        if not self.ended:
            self._service.close()
        return super().end(graceful=graceful, grace_seconds=grace_seconds)


def moments(
    text: str,
    folder: Path,
    patch: pytest.MonkeyPatch,
    seconds: float,
    step: float,
    age: float = 0.0,
    collectors: frozenset[str] = COLLECTORS,
) -> Iterator[Moment]:
    """Yield what the daemon shows, each `step` seconds. A worker is replaced at an `age`, unless that is 0."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: START + now[0], perf_counter=lambda: now[0])

    def sleep(duration: float) -> None:
        if duration > _DEADLINE:
            now[0] += _DEADLINE
            raise Hang
        now[0] += duration

    clock.sleep = sleep
    for module in _TIMED:
        patch.setattr(module, "time", clock)
    made = scenario(text)
    made._start |= {"monotonic": 0.0, "unix": START}
    simulate = made.simulation()

    def spawn() -> Worker:
        return _Worker(clock.monotonic, simulate)

    limits: dict[Group, float] = dict(READING_INTERVALS)
    intervals = ReadingIntervals(limits, deadline=_DEADLINE, idle=min(step, 5.0))
    driver = Supervisor(intervals, spawn, limits=RecyclingLimits(age_seconds=age))
    tree = ProcTree(folder, made)
    tree.update(0.0)
    node = FreeOfCost(str(folder))
    workloads = Workloads(node, cgroup_root=tree.cgroup_root, pod_logs=tree.pod_logs, clock=clock.monotonic)
    history = History()
    every = create_collectors(Machine(node, workloads, SimulatedSessions(made, clock=clock.monotonic)))
    chosen = [collector for collector in every if collector.name in collectors]
    sampler = Sampler(chosen, lambda: (driver.view(), driver.drain()), history.feed, 1.0)
    due, tick = 0.0, 0.0
    while tick <= seconds:
        now[0] = max(now[0], min(due, tick))
        if now[0] >= due:
            back = driver._pass()
            due = now[0] + max(0.0, min(driver._pace._due - now[0], back))
        if now[0] >= tick:
            tree.update(now[0])
            workloads.refresh()
            snapshot = sampler.tick(START + now[0], now[0])
            yield Moment(now[0], snapshot, status(snapshot, history))
            tick = max(now[0], tick) + step
    if driver._slot.current:
        driver._slot.end()
