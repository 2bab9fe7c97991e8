from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpugauge.driver.nvidia.nvml import use_library
from qa.gpu import check
from qa.gpu.replay import Replay


def test_check_of_a_simulated_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [f"--recordings={tmp_path}/recordings", f"--results={tmp_path}/results"]

    status = check.main(["--simulate=h200-gpm", "--seconds=0", *folders])

    (figures,) = (json.loads(path.read_text()) for path in (tmp_path / "results").iterdir())
    (recording,) = (tmp_path / "recordings").iterdir()
    assert status == 0
    assert figures["driver"] == "580.95.05"
    assert figures["gpus"][0]["samples"]["period_seconds"] == pytest.approx(1 / 6, abs=0.02)
    assert figures["gpus"][0]["fields"]["fan_rpm"] == "not_supported"
    assert figures["calls"]["nvmlDeviceGetUUID"]["calls"] == 4
    use_library(Replay(recording))
    assert "NVIDIA H200" in capsys.readouterr().out


def test_check_without_a_driver(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--simulate=no-driver"]) == 1
    assert "driver_not_loaded" in capsys.readouterr().out


def test_busy_seconds_by_the_drivers_clock() -> None:
    device = check.Device(0)
    device.samples["gpu"] = {100_000_000 + second * 1_000_000: 50 for second in range(11)}
    device.clocks = [(0.0, 0.0, 60.0, 110_000_000)]

    assert device.busy_seconds(54.5, 60.0) == (3.0, 6.0)
