"""The bench of the goals: what it calls met, and the clock that measures the ages of values."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.simulator.build import scenario

from gpugauge.driver.client import Worker
from qa.bench import figures, reachable, simulated
from qa.bench.goals import Table


def test_a_goal_is_met_up_to_its_value() -> None:
    table = Table(["bare", "file"])
    table.add("a", "seconds", 0.25, 0.25, 0.1, 0.01)
    table.add("b", "MB", 40.0, 40.4)

    assert [(row["target"], row["bare"], row["file"]) for row in table.rows] == [
        ("met: at most 0.25", 0.1, 0.01),
        ("NOT met: at most 40", "", ""),
    ]
    assert table.figures == {"a": "0.25", "b": "40"}


@pytest.mark.parametrize("clock", [False, True])
def test_the_energy_of_a_gpu_is_the_time_of_its_reading(
    clock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "simulation.json"
    file.write_text(json.dumps(scenario("gpus: {model: h100}").simulation()))
    monkeypatch.setenv(simulated.SIMULATION, str(file))
    if clock:
        monkeypatch.setenv("BENCH_CLOCK", "")
    worker = Worker("qa.bench.simulated")
    try:
        assert worker.ask("open", 20).values["driver"]["device_count"] == 1
        before = time.monotonic()
        reply = worker.ask("read", 20, index=0, groups=["static", "normal"])
        after = time.monotonic()
    finally:
        worker.end()

    energy = reply.values["normal"]["energy_millijoules"] / 1000
    assert (before - 0.001 <= energy <= after + 0.001) is clock


def test_what_could_be_reached_is_less_than_what_was_measured() -> None:
    goals, cost = figures.read("goals"), figures.read("cost")
    found = reachable.rows(goals, cost, reachable.Saved(first_scan=0.02, scans=0.03, server=1.5))

    nearest = {row["goal"]: (row["measured"] - row["nearest"], row["by"]) for row in found}
    assert nearest["CPU seconds a minute, idle"][0] == pytest.approx(0.02)
    assert nearest["the same, with the receiver"][0] == pytest.approx(1.5)
    assert nearest["start to a complete page, s"][0] == pytest.approx(0.02)
    assert "driver" in nearest["oldest value at a scrape each 15 s, s"][1]
