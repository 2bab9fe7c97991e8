from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.simulator.build import Clock

from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.simulator.nvml.library import Library
from qa.gpu import check
from qa.gpu.recording import Recorder
from qa.gpu.replay import Replay

NODE = """
driver: {version: 580.95.05}
gpus: [{model: h100, load: 0.7, lacks: [nvlink, fans]}, {model: h100, mig: [{profile: 1g.10gb, count: 2}]}]
processes: [{pid: 3, gpus: [1], instance: 0, memory: 2GiB, load: 0.3}]
"""
GROUPS = check.GROUPS


def readings(library: Any, clock: Clock) -> list[Any]:
    use_library(library)
    nvml = Nvml(lambda: clock.now)
    nvml.open()
    count = nvml.facts().device_count
    found = []
    for clock.now in (0.0, 1.0, 2.0):
        found += [(nvml.read(index, GROUPS), nvml.samples(index)) for index in range(count)]
    nvml.close()
    return found


def recorded(path: Path) -> list[Any]:
    clock = Clock()
    with path.open("w") as file:
        return readings(Recorder(Library(clock.world(NODE)), file, "580.95.05"), clock)


def test_replay_returns_the_recorded_values(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    truth = recorded(path)

    assert readings(Replay(path), Clock()) == truth


def test_replay_of_groups_that_were_not_read_together(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    truth = recorded(path)
    use_library(Replay(path))
    nvml = Nvml(lambda: 0.0)
    nvml.open()

    assert nvml.read(0, ["slow"])[0]["slow"] == truth[0][0][0]["slow"]


def test_lines_are_facts_and_calls(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    recorded(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert (lines[0]["recording"], lines[0]["driver_version"]) == (1, "580.95.05")
    assert all(line.keys() == {"f", "a", "r", "o", "us"} for line in lines[1:])


def test_file_that_is_not_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    for text in ("", "{}", '{"recording": 2}', '{"recording": 1}', "[1]", "[" * 5000):
        path.write_text(text)
        with pytest.raises(ValueError, match="not that of a recording"):
            Replay(path)


def test_line_that_is_not_a_call_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    for line in (
        "[]",
        "{}",
        "[" * 5000,
        '{"f": "nvmlInit", "a": null, "r": 0, "o": {}, "us": 1}',
        '{"f": "nvmlInit", "a": [], "r": 0, "o": {"0": "00"}, "us": 1}',
        '{"f": "nvmlInit", "a": [1], "r": 0, "o": {"0": "xy"}, "us": 1}',
        '{"f": "nvmlDeviceGetFieldValues", "a": [1, 1000000000000, ""], "r": 0, "o": {"2": ""}, "us": 1}',
    ):
        path.write_text(f'{{"recording": 1, "driver_version": "580.95.05"}}\n{line}\n')
        with pytest.raises(ValueError, match=r"gpu\.jsonl:2: not a recorded call"):
            Replay(path)


RECORDINGS = Path(__file__).parents[2] / "tests/recordings"


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recording_of_a_real_gpu(path: Path) -> None:
    """What nvidia-smi said of the same GPU, and samples that cover the time without a hole."""
    use_library(Replay(path))
    nvml = Nvml(lambda: 0.0)
    nvml.open()
    device = check.Device(0)
    for _ in range(16):
        device.read(nvml)
    nvml.close()

    assert nvml.facts().driver_version == path.stem.split("-", 3)[3]
    assert str(device.values["name"]).startswith("NVIDIA H")
    assert device.values["memory_total_bytes"] > 80e9
    assert (device.values["pcie_generation"], device.values["pcie_width"]) == (5, 16)
    clock = device.clock()
    assert (clock["holes"], clock["period_seconds"]) == (0, pytest.approx(0.2, abs=0.005))
    assert clock["samples"] > 100
