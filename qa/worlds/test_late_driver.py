"""A machine so busy that the driver is read late while trainings go on: what they lose stays what it is."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tests.virtual
from tests.virtual import VirtualDaemon

from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import load_scenario


def test_gpus_that_are_read_late_lose_no_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, late = random.Random(1), SimpleNamespace(by=0.0, driver=False)

    def sessions(scenario: Any, clock: Any) -> SimulatedSessions:
        return SimulatedSessions(scenario, clock=lambda: clock() - late.by)

    monkeypatch.setattr(tests.virtual, "SimulatedSessions", sessions)
    daemon = VirtualDaemon(load_scenario("bottlenecks"), tmp_path)
    take = daemon._schedule.take
    monkeypatch.setattr(daemon._schedule, "take", lambda *due: [] if late.driver else take(*due))

    def lost(seconds: int) -> dict[str, float]:
        for _ in range(seconds):
            late.by = 2.5 * dice.random() if late.driver else 0.0
            node = daemon.second().node
        return {process: judged.verdict.lost or 0.0 for process, judged in node.judged.items()}

    before = lost(90)
    late.driver = True
    lost(9)
    late.driver = False

    assert len(before) == 8
    for _ in range(8):
        assert lost(5) == pytest.approx(before, abs=0.03)
