"""Each scenario with a fault: metrics, alerts, status and page name the same faults of the same GPUs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import draws, seeds
from tests.needs import need
from tests.simulation import status
from tests.virtual import VirtualDaemon

from gpugauge.base import guard
from gpugauge.faults.table import FAULTS
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.snapshot import Snapshot
from gpugauge.status.model import Status, decoded
from gpugauge.web.page.links import Links
from gpugauge.web.page.render import content
from qa.bench.alerts.replay import replay
from qa.worlds.fault_histories import KEEP_FIRING, LATE, SCRAPE, SETTLE, story_of
from qa.worlds.reading import Reader
from qa.worlds.test_fault_histories import GROUPS, WANTED

pytestmark = pytest.mark.e2e

SCENARIOS = ("bad-links", "bad-from-start", "failing-card", "gpu-reset", "garbage", "lost-card", "counters-reset")
MINUTES = 12
HOLD = {"GpuLost": 2, **dict.fromkeys(("GpuHot", "GpuPcieDegraded", "GpuThrottled"), SETTLE)}
OF_PROGRAMS = {name for name, fault in FAULTS.items() if fault.severity == "info"}
Found = set[tuple[str, str]]  # fault and uuid


def exported(snapshot: Snapshot) -> Found:
    families = {family.metric.name: family for section in snapshot.sections for family in section.families}
    found = (
        {(labels[1], labels[0]) for labels, _ in families["gpu_problem"].samples}
        if "gpu_problem" in families
        else set()
    )
    counts = {labels[0]: value for labels, value in families["gpu_problems"].samples}
    assert {uuid: sum(uuid == gpu for _, gpu in found) for uuid in counts} == counts
    return found


def on_page(facts: dict[str, Any]) -> set[str]:
    """Return the sections of the runbook that the page links to, of faults that are no error of a program."""
    page = Reader("".join(content(decoded(Status, facts), None, Links("https://runbook.example/"))))
    linked = {link.partition("#")[2] for link in page.links}
    return {name for name in FAULTS if name.lower() in linked} - OF_PROGRAMS


def compare(snapshot: Snapshot, facts: dict[str, Any]) -> Found:
    """Return the faults at one moment, which are the same everywhere."""
    found = exported(snapshot)
    assert found == {(fault["runbook"], gpu["uuid"]) for gpu in facts["gpus"] for fault in gpu["faults"]}
    names = {fault for fault, _ in found} - OF_PROGRAMS
    # The page also shows what lowers clocks now, and Xid errors that are repaired.
    past = {"GpuThrottled", *(xid["runbook"] for gpu in facts["gpus"] for xid in gpu["xids"] if not xid["advice"])}
    assert names <= on_page(facts) <= names | past
    in_problems = {uuid for p in facts["problems"] if p["runbook"] in FAULTS for uuid in p["gpus"]}
    assert {uuid for fault, uuid in found if fault not in OF_PROGRAMS} <= in_problems
    return found


@seeds(draws(1, len(SCENARIOS)))
def test_metrics_alerts_status_and_page_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(guard, "START_WAIT_SECONDS", 60.0)
    daemon = VirtualDaemon(load_scenario(SCENARIOS[seed]), tmp_path)
    scrapes, shown = [], defaultdict[tuple[str, str], set[float]](set)
    for second in range(MINUTES * 60):
        snapshot = daemon.second()
        if second % SCRAPE == 0:
            scrapes.append((second // SCRAPE, snapshot))
            for fault in compare(snapshot, status(snapshot, daemon.history)):
                shown[fault].add(second / 60)
    daemon.close()

    fired = defaultdict[tuple[str, str], set[int]](set)
    for run in replay(story_of(SCENARIOS[seed], scrapes, WANTED, MINUTES), GROUPS, need("promtool")):
        fired[run.alert, run.labels["uuid"]] |= set(range(run.begin, run.end + 1))

    assert shown, SCENARIOS[seed]
    for fault in {*shown, *fired}:
        there, hold = shown[fault], HOLD.get(fault[0], 0) + LATE
        must = {m for m in range(MINUTES) if m >= hold and all(m - k in there for k in range(hold + 1))}
        may = {m for m in range(MINUTES) if any(m - k in there for k in range(KEEP_FIRING + LATE))}
        assert must <= fired[fault] <= may, fault
