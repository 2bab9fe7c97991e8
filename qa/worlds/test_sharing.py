"""Drawn programs that share GPUs: the time that all of them hold is that of the GPUs, and none is held twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import seeds
from tests.simulation import moments, scenario


@seeds(range(12))
def test_held_time_of_all_programs_is_that_of_their_gpus(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    count, model = dice.randint(1, 3), dice.choice(["h100", "a100", "mi300x"])
    lines = [f"gpus: {{model: {model}, count: {count}}}", "processes:"]
    for gpu in range(count):
        holders, trains = dice.randint(1, 5), dice.random() < 0.6
        for place in range(holders):
            loads = [0.0, round(dice.uniform(0.01, 0.5 / holders), 2)]
            what = "pipeline: {load: 2.5}" if trains and not place else f"load: {dice.choice(loads)}"
            lines.append(f"  - {{pid: {100 * gpu + place + 1}, gpus: [{gpu}], memory: 3GiB, {what}}}")
    found: dict[float, Any] = {
        moment.second: moment.samples for moment in moments(scenario("\n".join(lines)), tmp_path, 80)
    }
    before, after = found[30.0], found[78.0]  # verdicts are six seconds apart here

    held, lost = (
        sum(after[name].values()) - sum(before[name].values())
        for name in ("training_gpu_held_seconds_total", "training_lost_seconds_total")
    )
    assert held == pytest.approx(48.0 * count, rel=0.02)
    assert -0.01 <= lost <= held + 0.01
