"""Drawn machines and histories: what is exported, logged and counted is compared with the truth of the history."""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import seeds

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.remembered import StateFile
from gpugauge.driver.supervisor import Supervisor
from gpugauge.snapshot import Section
from qa.worlds.gpuhistory import Machine, Truth, change, drawn_machine

_SECONDS = 650  # longer than the longest quarantine


class Daemon:
    """A supervisor and two collectors, run turn by turn in the time of the test."""

    def __init__(self, machine: Machine, state: Path) -> None:
        self.machine = machine
        self.supervisor = Supervisor(
            ReadingIntervals({"fast": 1.0}), machine.worker, pci=machine.bus, state_file=StateFile(state)
        )
        self.device, self.events = DeviceCollector(), EventsCollector(None)
        self.views: dict[str, str] = {}
        self.changes = 0  # of conditions that a log line must have
        self._sections: dict[str, Section] = {}
        self.reported: dict[str, dict[tuple[str, ...], float]] = {}

    def turn(self) -> None:
        self.machine.now += 1.0
        self.supervisor._turn()
        self.supervisor._publish()
        view = self.supervisor.view()
        tick = Tick(self.machine.now, self.machine.now, view, self.supervisor.drain())
        self._keep(self.device.collect(tick))
        self._keep(self.events.collect(tick))
        now = {d.uuid: "ok" if d.up else d.reason for d in view.devices}
        self.changes += sum(self.views[uuid] != now[uuid] for uuid in now.keys() & self.views.keys())
        self.views = now

    def _keep(self, section: Section) -> None:
        self._sections[section.collector] = section
        self.reported = {
            family.metric.name: {labels: value for labels, value in family.samples if isinstance(value, (int, float))}
            for kept in self._sections.values()
            for family in kept.families
        }

    def new_worker(self) -> None:
        if self.supervisor._slot.current:
            self.supervisor._slot.end()

    def close(self) -> None:
        self.supervisor._roster.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines about a GPU's condition."""
    starts = ("GPU down", "GPU quarantined", "GPU back", "GPU found")
    return [r.fields for r in caplog.records if r.getMessage().startswith(starts)]  # type: ignore[attr-defined]  # `extra`


@pytest.mark.everything
# The last ones found errors.
@pytest.mark.timeout(900)
@seeds([*range(13), 112, 124, 128])
def test_drawn_histories(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    caplog.set_level(logging.INFO)
    draw = random.Random(seed)
    machine, truth = drawn_machine(draw), Truth()
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    daemon = Daemon(machine, tmp_path / "gpus.json")
    xids: dict[str, int] = {}
    for step in range(6):
        if step:
            changed = draw.sample(machine.slots, draw.randint(1, len(machine.slots)))
            for slot in changed:
                change(draw, slot)
            if draw.random() < 0.3:
                daemon.close()
                daemon, xids = Daemon(machine, tmp_path / "gpus.json"), {}
                truth.restart()
            else:
                daemon.new_worker()
            caplog.clear()
        before = dict(daemon.views)
        changes = daemon.changes
        for second in range(_SECONDS):
            if second == _SECONDS - 100:
                for slot in machine.slots:
                    if slot.works and draw.random() < 0.5:
                        machine.events.append((slot.uuid, machine.now, draw.choice([31, 43, 94])))
                        xids[slot.uuid] = xids.get(slot.uuid, 0) + 1
            daemon.turn()
        truth.step(machine)

        told = f"seed {seed}, step {step}: {machine.slots}"
        assert truth.agrees(_reasons(daemon.reported)), (told, _reasons(daemon.reported), truth.shown)
        _check_lines(lines(caplog), before, daemon, daemon.changes - changes, told)
        counts: dict[str, float] = {}
        for (uuid, _), value in daemon.reported.get("gpu_xid_errors_total", {}).items():
            counts[uuid] = counts.get(uuid, 0) + value
        assert {uuid: n for uuid, n in counts.items() if n} == xids, told


def _reasons(reported: dict[str, dict[tuple[str, ...], float]]) -> dict[str, str]:
    """Return "ok" or the reason of each GPU from the exported values."""
    down = {labels[0]: labels[1] for labels in reported.get("gpu_down_reason", {})}
    up = {uuid: bool(value) for (uuid,), value in reported.get("gpu_up", {}).items()}
    assert {uuid for uuid, value in up.items() if not value} == down.keys() & up.keys()
    return {uuid: "ok" if value else down[uuid] for uuid, value in up.items()}


def _check_lines(found: list[dict[str, Any]], before: dict[str, str], daemon: Daemon, changes: int, told: str) -> None:
    """Check that the lines tell each change once, and that they end where the exported values are."""
    state = dict(before)
    chained = 0
    for line in found:
        uuid = line["uuid"]
        assert uuid, told
        if uuid in state:
            assert line["previous"] == state[uuid] != line["reason"], (told, line)
            assert line["seconds"] >= 0
            chained += 1
        state[uuid] = line["reason"]
    assert chained == changes, (told, found)
    for uuid, reason in daemon.views.items():
        assert state.get(uuid, "ok") == reason, (told, uuid)
