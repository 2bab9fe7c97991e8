"""The daemon in virtual time and one thread: worker, collectors and exposition, second by second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.daemon.assembly import READING_INTERVALS
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverFacts, DriverView, Group, Reply
from gpugauge.driver.frames import decoded, frame, reply
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.reader import ReadingIntervals, Schedule
from gpugauge.exposition.render import Exposition
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import Scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.workload.workloads import Workloads
from tests.golden_metrics import FreeOfCost

START = 1_790_000_000.0  # Unix time
# The Accept header of Prometheus.
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
T = TypeVar("T")


class Watch(Protocol):
    """Performs one part of the work, and may measure it."""

    def __call__(self, part: str, work: Callable[[], T], /) -> T: ...


def _just_do(_: str, work: Callable[[], T]) -> T:
    return work()


class _Watched(RegisteredCollector):
    """A collector that is measured."""

    def __init__(self, inner: RegisteredCollector, watch: Watch) -> None:
        self._inner, self._watch = inner, watch
        self.name, self.metrics = inner.name, inner.metrics

    def collect(self, tick: Tick) -> Section:
        return self._watch(f"collector {self.name}", lambda: self._inner.collect(tick))


class VirtualDaemon:
    """Each call of second() runs the work of one second, at the intervals of the daemon."""

    def __init__(self, scenario: Scenario, folder: Path, watch: Watch = _just_do) -> None:
        scenario._start |= {"monotonic": 0.0, "unix": START}
        self.now, self._watch = 0.0, watch
        self._service = simulated_service(lambda: self.now)
        opened = self._service.answer({"id": 0, "op": "open", "simulate": scenario.simulation()})
        self._facts = DriverFacts(**opened.values["driver"])
        self._intervals, self._schedule = ReadingIntervals(dict(READING_INTERVALS)), Schedule()
        self._inventory = Inventory(self._intervals.limits)
        self._view = DriverView(False, "starting")
        self._replies: tuple[Reply, ...] = ()
        self._tree = ProcTree(folder, scenario)
        self._tree.update(0.0)
        node = FreeOfCost(str(folder))
        pod_logs, clock = self._tree.pod_logs, lambda: self.now
        self._workloads = Workloads(node, cgroup_root=self._tree.cgroup_root, pod_logs=pod_logs, clock=clock)
        self.exposition, self.history = Exposition(60.0), History()
        sessions = SimulatedSessions(scenario, clock=lambda: self.now)
        collectors = create_collectors(Sources(node, self._workloads, sessions))
        self._sampler = Sampler(
            [_Watched(collector, watch) for collector in collectors],
            lambda: (self._view, self._replies),
            self._publish,
            1.0,
        )

    def second(self) -> Snapshot:
        """Read the groups that are due, tick, and advance the time by a second."""
        self._tree.update(self.now)
        self._workloads.refresh()
        due = self._schedule.take(self._intervals, self.now)
        groups: list[Group] = due if self._replies else ["static", *READING_INTERVALS]
        self._replies = tuple(self._read(index, groups) for index in range(self._facts.device_count))
        devices = self._watch("inventory: view", lambda: self._inventory.devices(self.now))
        self._view = DriverView(True, "ok", self._facts, devices, worker_starts=1)
        snapshot = self._watch("tick, all", lambda: self._sampler.tick(START + self.now, self.now))
        self.now += 1.0
        return snapshot

    def scrape(self) -> bytes:
        """Return the body of a scrape by Prometheus."""
        return self._watch("answer to a scrape", lambda: self.exposition.respond(ACCEPT, "gzip", self.now)).body

    def close(self) -> None:
        self._service.close()

    def _read(self, index: int, groups: list[Group]) -> Reply:
        request = {
            "id": 1,
            "op": "read",
            "index": index,
            "groups": groups,
            "calls": index + 1 == self._facts.device_count,
        }
        message = self._watch("worker, simulator included", lambda: self._service.message(request))
        sent = self._watch("worker: encoding", lambda: frame(message))
        received = self._watch("decoding", lambda: reply(decoded(sent[4:])))
        self._watch("inventory", lambda: self._inventory.apply(received, self.now))
        received.uuid = self._inventory.uuid(index) or ""
        return received

    def _publish(self, snapshot: Snapshot) -> None:
        self._watch("exposition", lambda: self.exposition.publish(snapshot))
        self._watch("history", lambda: self.history.feed(snapshot))
