"""Facts about the place of a training: drawn machines, whose mistakes are known from the drawing."""

from __future__ import annotations

from pathlib import Path

from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.verdict import mistakes
from tests.virtual import VirtualDaemon


def test_batches_on_another_gpu() -> None:
    cases: list[tuple[dict[str, str], bool | None]] = [
        ({"batch_device": "cpu", "parameter_device": "cuda:0"}, False),
        ({"batch_device": "cuda:0", "parameter_device": "cuda:0"}, False),
        ({"batch_device": "cuda:0", "parameter_device": "cuda:1"}, True),
        ({"batch_device": "cuda:0", "parameter_device": "cpu"}, None),
        ({"batch_device": "cuda:0"}, None),
        ({"parameter_device": "cuda:1"}, None),
    ]
    assert [mistakes.found(facts).get("batch_elsewhere") for facts, _ in cases] == [found for _, found in cases]


def test_misplaced_trainings_of_a_simulated_node(tmp_path: Path) -> None:
    daemon = VirtualDaemon(load_scenario("misplaced"), tmp_path)
    for _ in range(40):
        snapshot = daemon.second()
    found = {f.metric.name: dict(f.samples) for s in snapshot.sections for f in s.families}
    pids = {labels[0]: labels[1] for labels in found["gpu_process_host_info"]}
    made = {(pids[p], mistake) for (p, mistake), value in found["training_mistake"].items() if value}

    assert made == {("7011", "narrow_link"), ("7021", "remote_cpus")}
    assert {pids[p]: v for (p,), v in found["gpu_process_swapped_bytes"].items() if v} == {"7041": 3 << 30}
