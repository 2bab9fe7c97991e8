"""The main job on real input: a real PyTorch training, watched by the daemon, scraped by a real Prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.programs import GPUGAUGE, Daemon, daemon, http, need, prometheus, wait_for

pytestmark = pytest.mark.e2e
SMALL = str(Path(__file__).parent / "workloads" / "small.py")


def train(running: Daemon, seconds: float, out: Path, *prefix: str) -> subprocess.Popen[bytes]:
    command = [*prefix, GPUGAUGE, "run", "--hook.socket", str(running.socket), "--"]
    return subprocess.Popen([*command, sys.executable, SMALL, str(seconds), str(out)])


def test_training_is_seen_by_prometheus(tmp_path: Path) -> None:
    with (
        daemon(tmp_path, "--simulate=node") as running,
        prometheus(tmp_path, running.url.removeprefix("http://")) as server,
    ):
        training = train(running, 22, tmp_path / "count.json")
        wait_for(lambda: (server.value("sum(torch_steps_total)") or 0) > 0, 30, "steps arrive")
        time.sleep(15)
        own_time = time.time()
        rate = server.value("sum(rate(torch_steps_total[10s]))")
        on_cpu = server.value('sum(torch_parameter_bytes{device="cpu"})')
        elsewhere = server.value('sum(torch_parameter_bytes{device!="cpu"})')
        cards = server.query("gpu_up * on (uuid) group_left (index) gpu_info")
        missing = [
            name
            for name in (
                "gpu_utilization_ratio",
                "gpu_memory_used_bytes",
                "gpu_power_watts",
                "gpu_energy_joules_total",
            )
            if server.value(f"count({name})") != 8
        ]
        assert training.wait(60) == 0
        count = json.loads((tmp_path / "count.json").read_text())
        total = wait_for(lambda: server.value("sum(torch_steps_total)") or 0, 5, "the counters linger")
        wait_for(
            lambda: (
                server.value("count(training_end_timestamp_seconds)") == 1 and not server.query("torch_parameter_bytes")
            ),
            10,
            "gauges go at the end, and the end is told",
        )
        final = server.value("sum(torch_steps_total)")

    own_rate = count["steps"] / (count["end"] - count["start"])
    assert own_time < count["end"], "the rate was taken while the script ran"
    assert rate == pytest.approx(own_rate, rel=0.05)
    assert on_cpu == 4 * (64 * 256 + 256 + 256 + 1)
    assert not elsewhere
    assert {r["metric"]["index"] for r in cards} == set(map(str, range(8)))
    assert missing == []
    assert total
    assert final == count["steps"]


def test_promtool_has_no_complaint(tmp_path: Path) -> None:
    promtool = need("promtool")
    with daemon(tmp_path, "--simulate=node") as running:
        training = train(running, 4, tmp_path / "count.json")
        wait_for(lambda: running.series("torch_steps_total", "process"), 30, "steps arrive")
        text = running.metrics()
        training.wait(60)

    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)

    assert (checked.stdout + checked.stderr, checked.returncode) == ("", 0)


def test_two_pid_namespaces_give_two_sets_of_series(tmp_path: Path) -> None:
    unshare = (need("unshare"), "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        unshare = tuple(part for part in unshare if part not in {"--user", "--map-root-user"})
    with daemon(tmp_path, "--driver.mode=off") as running:
        trainings = [train(running, 6, tmp_path / f"{n}.json", *unshare) for n in range(2)]
        wait_for(lambda: len(running.series("torch_steps_total", "process")) == 2, 30, "two sets of series")
        own_pids = running.series("torch_process_info", "own_pid")
        for training in trainings:
            assert training.wait(60) == 0
        counts = [json.loads((tmp_path / f"{n}.json").read_text())["steps"] for n in range(2)]
        time.sleep(2)
        steps = running.series("torch_steps_total", "process")

    assert own_pids == {("1",): 1}
    assert sorted(steps.values()) == sorted(counts)


def test_real_library_without_a_driver(tmp_path: Path) -> None:
    fetch = Path(__file__).parent / "fetch-libnvidia-ml"
    library = Path(__file__).parents[2] / ".cache" / "libnvidia-ml"
    need("apt-get")
    subprocess.run([fetch, library], check=True)
    environment = {"LD_LIBRARY_PATH": str(library)}
    with daemon(tmp_path, environment=environment) as running:
        training = train(running, 3, tmp_path / "count.json")
        up = running.series("gpugauge_driver_up", "reason")
        wait_for(lambda: running.series("torch_steps_total", "process"), 30, "the trainings are served")
        training.wait(60)
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
        up = running.series("gpugauge_driver_up", "reason")
        ready = http(running.url + "/-/ready")[0]

    assert (up, ready) == ({("library_not_found",): 0}, 200)
