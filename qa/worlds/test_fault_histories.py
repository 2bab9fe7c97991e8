"""The alerts about faults of GPUs, compared with drawn histories of faults at each minute.

`gpugauge` knows nothing about a repair but what the driver, the kernel log and its own file say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import draws, seeds
from tests.needs import need

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import parse_scenario
from qa.bench.alerts.replay import replay
from qa.worlds.fault_histories import KINDS, LATE, MINUTES, Machine, draw, observe

pytestmark = pytest.mark.e2e

SEEDS = 6
NOTICED = 2  # minutes until a view shows a fault: readings, a scrape, a mean load
GROUPS: dict[str, Any] = {
    "groups": [g for g in rules.groups(Parameters())["groups"] if g["name"] == "gpugauge-devices"]
}
WANTED = {row.name for row in catalog.metrics()} & set(re.findall(r"\b[a-z]+_\w+", str(GROUPS)))


def differences(machine: Machine, fired: dict[tuple[str, str], dict[int, dict[str, str]]]) -> list[str]:
    """Return what fired against the truth, or did not fire; `fired` are labels by alert and index, and by minute."""
    found = []
    alerts = {alert for alert, _ in fired} | {alert for history in machine.histories for alert in history.expected}
    for index, history in enumerate(machine.histories):
        for alert in sorted(alerts):
            minutes, truth = fired.get((alert, str(index)), {}), history.expected.get(alert)
            drawn = f"GPU {index}, {history.kind} from {history.begin / 60:.1f} to {(history.repair or 1e9) / 60:.1f}"
            if truth is None:
                found += [f"{drawn}: {alert} fires in {min(minutes)}"] if minutes else []
                continue
            missing = [m for m in range(MINUTES) if truth.must[0] <= m <= truth.must[1] and m not in minutes]
            wrong = [m for m in minutes if not truth.may[0] <= m <= truth.may[1]]
            found += [f"{drawn}: {alert} does not fire in {missing}"] if missing else []
            found += [f"{drawn}: {alert} fires in {wrong}"] if wrong else []
            late = [minutes[m] for m in minutes if truth.must[0] <= m <= truth.must[1]]
            found += [
                f"{drawn}: {alert} lacks {truth.labels}: {labels}"
                for labels in late
                if not truth.labels.items() <= labels.items()
            ][:1]
    return found


def test_every_kind_of_fault_is_drawn_before_and_after_the_first_scrape_repaired_and_not() -> None:
    machines = [draw(seed) for seed in range(SEEDS)]
    drawn = {
        (history.kind, history.begin / 60 < machine.first_scrape, history.repair is not None)
        for machine in machines
        for history in machine.histories
    }

    assert {kind for kind, _, _ in drawn} == set(KINDS)
    assert len(drawn) > 3 * len(KINDS)
    assert {bool(machine.restarts) for machine in machines} == {True, False}
    assert {machine.kernel_log for machine in machines} == {True, False}


@seeds(draws(1, SEEDS))
def test_alerts_and_views_have_each_fault_from_its_begin_to_its_repair(tmp_path: Path, seed: int) -> None:
    machine = draw(seed)
    story, minutes = observe(machine, tmp_path, f"drawn-{seed}", WANTED)
    uuids = [d.uuid for d in World(parse_scenario(machine.scenario, "drawn.yaml", "drawn").simulation()).devices]

    fired: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    for run in replay(story, GROUPS, need("promtool")):
        index = run.labels["index"]
        assert (run.labels["uuid"], run.labels["instance"]) == (uuids[int(index)], "node-1")
        of_gpu = fired.setdefault((run.alert, index), {})
        of_gpu.update((minute, dict(run.labels)) for minute in range(run.begin, run.end + 1))
    assert differences(machine, fired) == []
    assert _misses(machine, minutes) == []


def _misses(machine: Machine, minutes: Mapping[tuple[str, int], set[float]]) -> list[str]:
    """Return where the views show a fault that is not there, or do not show one that is."""
    found = []
    for index, history in enumerate(machine.histories):
        faults = {fault for fault, _ in minutes} | history.expected.keys()
        for fault in sorted(faults - {"GpuXidApplication", "GpuXidOther"}):  # which last as long as an alert is useful
            seen, drawn = minutes.get((fault, index), set()), f"GPU {index}, {history.kind}: {fault} is"
            if fault not in history.expected:
                found += [f"{drawn} shown in {sorted(seen)}"] if seen else []
                continue
            begin, end = max(history.begin / 60, machine.first_scrape), (history.repair or 60 * MINUTES) / 60
            # After a restart nothing is known for a moment.
            gaps = [(minute, minute + NOTICED) for minute in (begin, *machine.restarts)]
            due = {m for m in range(MINUTES) if begin <= m <= end and not any(a <= m <= b for a, b in gaps)}
            found += [f"{drawn} not shown in {sorted(due - seen)}"] if due - seen else []
            wrong = [m for m in seen if not begin <= m <= end + LATE]
            found += [f"{drawn} shown in {sorted(wrong)}, from {begin:.1f} to {end:.1f}"] if wrong else []
    return found
