"""NVIDIA's real library on a machine without its driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.e2e.documents import ROOT
from tests.e2e.programs import daemon, wait_for
from tests.e2e.test_main_job import train
from tests.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.everything]


def test_real_library_without_a_driver(tmp_path: Path) -> None:
    library = ROOT / ".cache" / "libnvidia-ml"
    need("apt-get")
    subprocess.run([Path(__file__).with_name("fetch-libnvidia-ml"), library], check=True)
    environment = {"LD_LIBRARY_PATH": str(library)}
    with daemon(tmp_path, environment=environment) as running, train(running, tmp_path / "count.json") as training:
        up = running.series("gpugauge_driver_up", "reason")
        wait_for(lambda: running.series("torch_steps_total", "process"), 30, "the training is shown")
        training.count()
        log = running.log.read_text()
    with daemon(tmp_path, "--driver.mode=required", environment=environment, ready=False) as required:
        code = required.process.wait(90)
        sentence = required.log.read_text()

    assert up == {("driver_not_loaded",): 0}
    assert log.count("kernel driver is not loaded") == 1
    assert code == 1
    assert "kernel driver is not loaded" in sentence
