"""The daemon in virtual time and one thread: the worker's answers, the collectors and the page, second by second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from gpugauge.collectors.base import Collector, Tick
from gpugauge.daemon.assembly import PACE, make_collectors
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverFacts, DriverView, Group, Reply
from gpugauge.driver.frames import decoded, frame
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.messages import reply
from gpugauge.driver.schedule import Pace, Schedule
from gpugauge.exposition.render import Exposition
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import Scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

START = 1_790_000_000.0  # Unix time
# As Prometheus asks.
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
T = TypeVar("T")


class Watch(Protocol):
    """Does one part of the work, and may measure it."""

    def __call__(self, part: str, work: Callable[[], T], /) -> T: ...


def _just_do(_: str, work: Callable[[], T]) -> T:
    return work()


class _Watched:
    """A collector under watch."""

    def __init__(self, inner: Collector, watch: Watch) -> None:
        self._inner, self._watch = inner, watch
        self.name, self.metrics = inner.name, inner.metrics

    def collect(self, tick: Tick) -> Section:
        return self._watch(f"collector {self.name}", lambda: self._inner.collect(tick))


class VirtualDaemon:
    """Lives a second with each call of second(), at the daemon's own pace."""

    def __init__(self, scenario: Scenario, folder: Path, watch: Watch = _just_do) -> None:
        scenario._start |= {"monotonic": 0.0, "unix": START}
        self.now, self._watch = 0.0, watch
        self._service = simulated_service(lambda: self.now)
        opened = self._service.answer({"id": 0, "op": "open", "simulate": scenario.simulation()})
        self._facts = DriverFacts(**opened.values["driver"])
        self._pace, self._schedule = Pace(dict(PACE)), Schedule()
        self._inventory = Inventory(self._pace.limits)
        self._view = DriverView(False, "starting")
        self._replies: tuple[Reply, ...] = ()
        self._tree = ProcTree(folder, scenario)
        self._tree.update(0.0)
        node = Procfs(str(folder))
        workloads = Workloads(node, cgroup_root=self._tree.cgroup_root)
        self.exposition, self._history = Exposition(60.0), History()
        collectors = make_collectors(node, SimulatedSessions(scenario, clock=lambda: self.now), node, workloads)
        self._sampler = Sampler(
            [_Watched(collector, watch) for collector in collectors],
            lambda: (self._view, self._replies),
            self._publish,
            1.0,
        )

    def second(self) -> Snapshot:
        """Read what is due, tick, and let a second pass."""
        self._tree.update(self.now)
        due = self._schedule.take(self._pace, self.now)
        groups: list[Group] = due if self._replies else ["static", *PACE]
        self._replies = tuple(self._read(index, groups) for index in range(self._facts.device_count))
        devices = self._watch("inventory: view", lambda: self._inventory.devices(self.now))
        self._view = DriverView(True, "ok", self._facts, devices, worker_starts=1)
        snapshot = self._watch("tick, all", lambda: self._sampler.tick(START + self.now, self.now))
        self.now += 1.0
        return snapshot

    def scrape(self) -> bytes:
        """Ask as Prometheus does."""
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
        heard = self._watch("decoding", lambda: reply(decoded(sent[4:])))
        self._watch("inventory", lambda: self._inventory.apply(heard, self.now))
        heard.uuid = self._inventory.uuid(index) or ""
        return heard

    def _publish(self, snapshot: Snapshot) -> None:
        self._watch("page", lambda: self.exposition.publish(snapshot))
        self._watch("history", lambda: self._history.feed(snapshot))
