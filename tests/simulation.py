"""A scenario with the collectors of the daemon in simulated time, without processes, threads and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import Sources
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverFacts, DriverView, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.metric import LabelValues, Value
from gpugauge.settings.model import Settings, Verdict
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import Scenario, parse_scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import as_json
from gpugauge.status.node import build
from gpugauge.workload.workloads import Workloads
from tests.golden_metrics import GROUPS, LIMITS, START, FreeOfCost, _answer

# Seconds between two ticks, repeated: with a viewer, without one, and a mixture with late ticks and with ticks just
# before a scrape.
STEADY, OFTEN, RARELY = (2.0,), (1.0,), (5.0,)
BY_TURNS = (5.001, 4.4, 1.0, 1.0, 0.999, 4.999, 5.0, 3.1)


@dataclass
class Moment:
    """The exported samples at a second, and the verdict by pid."""

    second: float
    samples: Mapping[str, Mapping[LabelValues, Value]]
    states: dict[int, str] = field(default_factory=dict)
    causes: dict[int, str | None] = field(default_factory=dict)
    shares: dict[int, dict[str, float]] = field(default_factory=dict)


def scenario(text: str) -> Scenario:
    return parse_scenario(f"description: a test\n{text}", "test.yaml", "test")


def moments(
    made: Scenario,
    folder: Path,
    seconds: float,
    stalled_seconds: float = 300.0,
    steps: tuple[float, ...] = STEADY,
) -> Iterator[Moment]:
    """Yield the exported samples of every tick."""
    now = 0.0
    made._start |= {"monotonic": 0.0, "unix": START}
    service, inventory = simulated_service(lambda: now), Inventory(LIMITS)
    facts = DriverFacts(**_answer(service, "open", simulate=made.simulation()).values["driver"])
    tree = ProcTree(folder, made)
    tree.update(0.0)
    node = FreeOfCost(str(folder))
    workloads = Workloads(node, cgroup_root=tree.cgroup_root, pod_logs=tree.pod_logs, clock=lambda: now)
    replies: list[Reply] = []

    def news() -> tuple[DriverView, tuple[Reply, ...]]:
        taken, replies[:] = tuple(replies), []
        return DriverView(True, "ok", facts, inventory.devices(now), worker_starts=1), taken

    sessions = SimulatedSessions(made, clock=lambda: now)
    settings = Settings(verdict=Verdict(stalled_seconds=stalled_seconds))
    collectors = create_collectors(Sources(node, workloads, sessions), settings)
    sampler = Sampler(collectors, news, lambda _: None, 1.0)
    step = cycle(steps)
    while now <= seconds:
        tree.update(now)
        workloads.refresh()
        for index in range(facts.device_count):
            reply = _answer(service, "read", index=index, groups=list(GROUPS))
            inventory.apply(reply, now)
            replies.append(replace(reply, uuid=inventory.uuid(index) or "", received=now))
        yield _moment(now, sampler.tick(START + now, now))
        now += next(step)
    service.close()


def _moment(second: float, snapshot: Snapshot) -> Moment:
    failed = [(name, health.error) for name, health in snapshot.health.items() if not health.success]
    assert failed == []
    families = [family for section in snapshot.sections for family in section.families]
    found = Moment(second, {family.metric.name: dict(family.samples) for family in families})
    for labels in found.samples.get("torch_process_info", {}):
        process, pid = labels[0], int(labels[1])
        states = found.samples.get("training_state", {})
        found.states[pid] = next((state for (p, state), value in states.items() if p == process and value == 1), "")
        named = [cause for p, cause in found.samples.get("training_limited_by", {}) if p == process]
        found.causes[pid] = named[0] if named else None
        ratios = found.samples.get("training_limited_by_ratio", {})
        found.shares[pid] = {c: v for (p, c), v in ratios.items() if p == process and isinstance(v, float)}
    return found


def status(snapshot: Snapshot, history: History, may_have_gpu: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Return the status as the daemon sends it."""
    return dict(as_json(build(snapshot, history, may_have_gpu)))
