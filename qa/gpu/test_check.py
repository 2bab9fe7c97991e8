from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.nvidia.nvml import use_library
from gpugauge.simulator.amd.backend import SimulatedAmd
from gpugauge.simulator.scenario.load import load_scenario
from qa.gpu import amdfiles, check
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


def test_a_copy_of_the_files_of_amd_can_be_read_again(tmp_path: Path) -> None:
    simulated = SimulatedAmd()
    simulated.open(simulate=load_scenario("amd-workstation").simulation())
    root = simulated._sysfs.folder.removesuffix("/sys")

    found = amdfiles.record(tmp_path, 0.0, root)

    again = Amd()
    again.open(f"{tmp_path}/0/sys", f"{tmp_path}/0/proc")
    values, _ = again.read(0, amdfiles.GROUPS)
    address = values["static"]["pci_bus_id"]
    assert len(found) == again.facts().device_count > 1
    for group in values.values():
        assert {name: found[address][name] for name in group} == group
    assert "gpu_metrics" in (tmp_path / f"0/sys/devices/pci0000:00/{address}/names").read_text()
    simulated.close()


def test_busy_seconds_by_the_drivers_clock() -> None:
    device = check.Device(0)
    device.samples["gpu"] = {100_000_000 + second * 1_000_000: 50 for second in range(11)}
    device.clocks = [(0.0, 0.0, 60.0, 110_000_000)]

    assert device.busy_seconds(54.5, 60.0) == (3.0, 6.0)
