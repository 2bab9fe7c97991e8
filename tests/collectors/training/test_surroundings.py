"""Facts about the place of a training: drawn machines, whose mistakes are known from the drawing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpugauge.collectors.training.surroundings import cpu_set
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.verdict import mistakes
from tests.virtual import VirtualDaemon


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-", {0}), ("a-b", set()), ("3-1", set()), ("1,,2", set())],
)
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert cpu_set(text) == cpus


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"batch_device": "cpu", "parameter_device": "cuda:0"}, False),
        ({"batch_device": "cuda:0", "parameter_device": "cuda:0"}, False),
        ({"batch_device": "cuda:0", "parameter_device": "cuda:1"}, True),
        ({"batch_device": "cuda:0", "parameter_device": "cpu"}, None),
        ({"batch_device": "cuda:0"}, None),
        ({"parameter_device": "cuda:1"}, None),
    ],
)
def test_batches_on_another_gpu(facts: dict[str, str], expected: bool | None) -> None:
    assert mistakes.found(facts).get("batch_elsewhere") == expected


def test_misplaced_trainings_of_a_simulated_node(tmp_path: Path) -> None:
    daemon = VirtualDaemon(load_scenario("misplaced"), tmp_path)
    for _ in range(40):
        snapshot = daemon.second()
    found = {f.metric.name: dict(f.samples) for s in snapshot.sections for f in s.families}
    pids = {labels[0]: labels[1] for labels in found["gpu_process_host_info"]}
    made = {(pids[p], mistake) for (p, mistake), value in found["training_mistake"].items() if value}

    assert made == {("7011", "narrow_link"), ("7021", "remote_cpus")}
    assert {pids[p]: v for (p,), v in found["gpu_process_swapped_bytes"].items() if v} == {"7041": 3 << 30}
