"""The main use case with real programs: a PyTorch training under the hook, the daemon, and Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import GPUGAUGE, Daemon, daemon, http, new_pid_namespace, prometheus, wait_for
from tests.needs import need

pytestmark = pytest.mark.e2e
OF_EACH_DEVICE = (
    *("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_power_watts"),
    *("gpu_power_limit_watts", "gpu_energy_joules_total", "gpu_performance_state"),
)
# Steps by the timestamps of the steps: hook, daemon and Prometheus each sample once a second, so that a plain rate over
# a short window has aliasing errors.
RATE = """sum(torch_steps_total - torch_steps_total offset 10s)
  / sum(training_last_step_timestamp_seconds - training_last_step_timestamp_seconds offset 10s)"""
SMALL = str(Path(__file__).parent / "workloads" / "small.py")


def train(running: Daemon, seconds: float, out: Path, *prefix: str) -> Training:
    command = [*prefix, GPUGAUGE, "run", "--", sys.executable, SMALL, str(seconds), str(out)]
    return Training(command, running, out)


class Training(subprocess.Popen[bytes]):
    """A real training that reports to the daemon, and is killed at the end of the context."""

    def __init__(self, command: list[str], running: Daemon, out: Path) -> None:
        super().__init__(command, env={**os.environ, "GPUGAUGE_HOOK_SOCKET": str(running.socket)})
        self.out = out

    def count(self) -> dict[str, Any]:
        """Wait for the end, and return the script's own count."""
        assert self.wait(60) == 0
        result: dict[str, Any] = json.loads(self.out.read_text())
        return result

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()


def test_training_is_in_prometheus(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, "--simulate=idle") as running,
        prometheus(tmp_path, running.url.removeprefix("http://")) as server,
        train(running, 22, tmp_path / "count.json") as training,
    ):
        wait_for(lambda: (server.value("sum(torch_steps_total)") or 0) > 0, 30, "steps arrive")
        time.sleep(15)
        asked = time.time()
        rate = server.value(RATE)
        on_cpu = server.value('sum(torch_parameter_bytes{device="cpu"})')
        elsewhere = server.query('torch_parameter_bytes{device!="cpu"}')
        devices = server.query("gpu_up * on (uuid) group_left (index) gpu_info")
        counts = {name: server.value(f"count({name})") for name in OF_EACH_DEVICE}
        count = training.count()
        wait_for(lambda: server.value("count(training_end_timestamp_seconds)") == 1, 10, "the end is shown")
        wait_for(lambda: not server.query("torch_parameter_bytes"), 10, "its gauges are absent")
        final = server.value("sum(torch_steps_total)")

    assert asked < count["end"], "the rate was taken while the script ran"
    own = [t for t in count["times"] if asked - 12 < t < asked - 2]
    assert rate == pytest.approx((len(own) - 1) / (own[-1] - own[0]), rel=0.05)
    assert on_cpu == 4 * (64 * 256 + 256 + 256 + 1)
    assert elsewhere == []
    assert {device["metric"]["index"] for device in devices} == set(map(str, range(8)))
    assert counts == dict.fromkeys(OF_EACH_DEVICE, 8)
    assert final == count["steps"]


def test_promtool_has_no_complaint(tmp_path: Path) -> None:
    promtool = need("promtool")
    with daemon(tmp_path, "--simulate=idle") as running, train(running, 4, tmp_path / "count.json"):
        wait_for(lambda: running.series("torch_steps_total", "process"), 30, "steps arrive")
        text = running.metrics()

    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)

    assert (checked.stdout + checked.stderr, checked.returncode) == ("", 0)


def test_two_pid_namespaces_give_two_sets_of_series(tmp_path: Path) -> None:
    unshare = new_pid_namespace()
    with (
        daemon(tmp_path, "--driver.mode=off") as running,
        train(running, 6, tmp_path / "1.json", *unshare) as one,
        train(running, 6, tmp_path / "2.json", *unshare) as two,
    ):
        wait_for(lambda: len(running.series("torch_steps_total", "process")) == 2, 30, "two sets of series")
        own_pids = running.series("torch_process_info", "process", "container_pid")
        counts = {one.count()["steps"], two.count()["steps"]}
        wait_for(lambda: set(running.series("torch_steps_total", "process").values()) == counts, 5, "the last steps")

    assert [pid for _, pid in own_pids] == ["1", "1"]


def test_real_library_without_a_driver(tmp_path: Path) -> None:
    library = Path(__file__).parents[2] / ".cache" / "libnvidia-ml"
    need("apt-get")
    subprocess.run([Path(__file__).parent / "fetch-libnvidia-ml", library], check=True)
    environment = {"LD_LIBRARY_PATH": str(library)}
    with (
        daemon(tmp_path, environment=environment) as running,
        train(running, 3, tmp_path / "count.json") as training,
    ):
        up = running.series("gpugauge_driver_up", "reason")
        wait_for(lambda: running.series("torch_steps_total", "process"), 30, "the training is shown")
        training.count()
        log = running.log.read_text()
    with daemon(tmp_path, "--driver.mode=required", environment=environment, ready=False) as required:
        code = required.process.wait(20)
        sentence = required.log.read_text()

    assert up == {("driver_not_loaded",): 0}
    assert log.count("kernel driver is not loaded") == 1
    assert code == 1
    assert "kernel driver is not loaded" in sentence


def test_no_library_at_all(tmp_path: Path) -> None:
    with daemon(tmp_path, environment={"LD_LIBRARY_PATH": ""}) as running:
        known = {("library_not_found",): 0.0}
        wait_for(lambda: running.series("gpugauge_driver_up", "reason") == known, 20, "the driver has been tried")
        assert http(running.url + "/-/ready")[0] == 200
