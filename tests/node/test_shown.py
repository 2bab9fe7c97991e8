"""The verdict uses only what a scrape shows: the evidence of the typed node is that of the exported samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from qa.worlds.scraped import node_of

from gpugauge.collectors.training import verdict
from gpugauge.node.node import Memory, Node
from gpugauge.node.window import Window
from gpugauge.sessions.session import Counters
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.verdict.facts import evidence, processes
from gpugauge.verdict.loader_facts import load
from gpugauge.verdict.mfu import model_flops_utilization
from gpugauge.verdict.shares import step_shares
from gpugauge.workload.identity import Workload
from gpugauge.workload.workloads import Workloads
from tests.virtual import VirtualDaemon

# Two pods, and the names of devices that they are assigned to: a GPU each, MIG devices, and a GPU for both.
PODS = tuple(Workload("pod", "ml", f"p-{n}", "main", "uid", "1000", "a.py", "r", "pod", f"p-{n}", "x") for n in (0, 1))
ASSIGNED = {"nvidia0": PODS[:1], "nvidia0/gi1": PODS[:1], "nvidia0/gi2": PODS, "nvidia1": PODS, "nvidia1/gi1": PODS}


def close(value: Any) -> Any:
    """Return the value with floats that compare approximately."""
    if isinstance(value, dict):
        return {key: close(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [close(part) for part in value]
    return pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def known(memory: Mapping[str, Memory]) -> dict[str, Memory]:
    return {process: found for process, found in memory.items() if found != Memory()}


def parts(node: Node) -> dict[str, Any]:
    """Return what a scrape shows of a node as it is: not the smallest causes, early evidence, and parts of the rest."""
    judged = {
        p: j._replace(rest={}, known={}, early=False, verdict=j.verdict._replace(minor=0))
        for p, j in node.judged.items()
    }
    names = ("utilization", "identities", "hidden", "on_mig", "build")
    assigned = {uuid: ({*a.workloads}, a.state) for uuid, a in node.assignments.items() if a.state}
    hook = node.hook and (node.hook.banned, node.hook.replaced_at)
    return {name: getattr(node, name) for name in names} | {"assignments": assigned, "hook": hook, "judged": judged}


def judged(window: Window, process: str, node: Node) -> Any:
    """Return all that the verdict computes from a window."""
    found = evidence(window, process, node.monotonic, node.timestamp, None)
    loading = load(window, process, found) if found.inside else None
    (shares, _), mfu = step_shares(window, process), model_flops_utilization(window, process)
    return plain([found, loading, shares, mfu])


@pytest.mark.parametrize(
    "scenario",
    ["bottlenecks", *(pytest.param(name, marks=pytest.mark.everything) for name in ("loaders", "node", "a100-mig"))],
)
def test_evidence_is_that_of_a_scrape(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Window, Node]] = []

    class Watched(Window):
        def add(self, node: Node) -> None:
            super().add(node)
            seen.append((self, node))

    monkeypatch.setattr(verdict, "Window", Watched)
    monkeypatch.setattr(Workloads, "allocations", lambda _: ASSIGNED)
    monkeypatch.setattr(Workloads, "lists_all", lambda _: True)
    monkeypatch.setattr(SimulatedSessions, "counters", lambda _: Counters({}, {}, banned=2, replaced_at=1.5e9))
    daemon, shown, compared = VirtualDaemon(load_scenario(scenario), tmp_path), Window(), 0
    concluded: list[tuple[Node, Node]] = []
    for second in range(66):
        snapshot = daemon.second()
        scraped = node_of(snapshot.sections, snapshot.timestamp, snapshot.monotonic)
        concluded.append((snapshot.node, scraped))
        assert parts(snapshot.node) == parts(scraped)
        assert known(snapshot.node.memory) == known(scraped.memory)
        if not seen:
            continue
        window, node = seen.pop()
        for process, host in scraped.hosts.items():  # a scrape does not say when a cgroup was read
            host.cgroup = host.cgroup._replace(at=node.hosts[process].cgroup.at)
        shown.add(scraped)
        assert processes(shown.node) == processes(node)
        for process in processes(node) if second > 40 else ():
            assert judged(shown, process, node) == close(judged(window, process, node)), process
            compared += 1
    daemon.close()
    assert compared > 4
    assert all(parts(node)["judged"] == parts(copy)["judged"] for node, copy in concluded)  # nothing changes in a part
    assert known(snapshot.node.memory) or scenario == "a100-mig"
    assert {a.state for a in snapshot.node.assignments.values()} >= {"unallocated", "allocated", "shared"}
