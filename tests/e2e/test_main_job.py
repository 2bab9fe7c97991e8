"""The main use case with real programs: PyTorch trainings with and without the hook, the daemon, and Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import GPUGAUGE, Daemon, Prometheus, daemon, http, new_pid_namespace, prometheus, wait_for
from tests.needs import need

pytestmark = pytest.mark.e2e
OF_EACH_DEVICE = (
    *("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_power_watts"),
    *("gpu_power_limit_watts", "gpu_energy_joules_total", "gpu_performance_state"),
)
SMALL = Path(__file__).parent / "workloads" / "small.py"
# Arguments and environments may contain secrets, and must not appear in any output of the daemon.
SECRET = "hunter2"
ARGUMENTS = (f"{SECRET}-word", f"--token={SECRET}-argument", "--password", f"{SECRET}-argument")
HIDDEN = {"API_TOKEN": f"{SECRET}-variable"}
CODE = f"import torch, time; token = '{SECRET}-code'; time.sleep(300)"


class Training(subprocess.Popen[bytes]):
    """A real training that is killed at the end of the context."""

    def __init__(self, command: list[str], out: Path, **variables: str) -> None:
        super().__init__(command, env={**os.environ, **HIDDEN, **variables})
        self.out = out

    def count(self) -> dict[str, Any]:
        """End the training, and return the script's own count."""
        Path(f"{self.out}.enough").touch()
        assert self.wait(60) == 0
        result: dict[str, Any] = json.loads(self.out.read_text())
        return result

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()


def train(running: Daemon, out: Path, *prefix: str, script: Path = SMALL) -> Training:
    """Start a training that reports to the daemon."""
    command = [*prefix, GPUGAUGE, "run", "--", sys.executable, str(script), "300", str(out), *ARGUMENTS]
    return Training(command, out, GPUGAUGE_HOOK_SOCKET=str(running.socket))


@dataclass
class Node:
    """A daemon, a real training with the hook and one without, and Prometheus, which also scrapes simulated GPUs."""

    running: Daemon
    server: Prometheus
    hooked: Training
    plain: Training


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    script = folder / "train.py"
    script.write_text(SMALL.read_text())
    with ExitStack() as stack:
        (folder / "gpus").mkdir()
        running = stack.enter_context(daemon(folder, "--driver.mode=off", "--log.level=debug"))
        gpus = stack.enter_context(daemon(folder / "gpus", "--simulate=idle"))
        addresses = [each.url.removeprefix("http://") for each in (running, gpus)]
        server = stack.enter_context(prometheus(folder, *addresses))
        hooked = stack.enter_context(train(running, folder / "hooked.json", script=script))
        out = folder / "plain.json"
        command = [sys.executable, str(script), "300", str(out), *ARGUMENTS]
        plain = stack.enter_context(Training(command, out, GPUGAUGE_HOOK="0"))
        wait_for(lambda: (server.value("sum(torch_steps_total) * sum(gpu_up)") or 0) > 0, 60, "steps and GPUs arrive")
        yield Node(running, server, hooked, plain)


def test_gpus_and_training_are_in_prometheus(node: Node) -> None:
    devices = node.server.query("gpu_up * on (uuid) group_left (index) gpu_info")

    assert {device["metric"]["index"] for device in devices} == set(map(str, range(8)))
    for name in OF_EACH_DEVICE:
        assert node.server.value(f"count({name})") == 8, name
    assert node.server.value('sum(torch_parameter_bytes{device="cpu"})') == 4 * (64 * 256 + 256 + 256 + 1)
    assert node.server.query('torch_parameter_bytes{device!="cpu"}') == []


def test_promtool_has_no_complaint(node: Node) -> None:
    command = [need("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=node.running.metrics(), capture_output=True, text=True, check=False)

    assert (checked.stdout + checked.stderr, checked.returncode) == ("", 0)


def test_trainings_with_and_without_the_hook_are_one_process_each(node: Node) -> None:
    running, pids = node.running, {str(node.hooked.pid), str(node.plain.pid)}
    wait_for(lambda: pids <= {pid for (pid,) in running.series("gpu_process_host_info", "pid")}, 60, "both are shown")
    info = running.series("gpu_process_host_info", "process", "pid", "torch_build")
    host = {pid: (process, build) for process, pid, build in info}
    cpu = running.series("gpu_process_cpu_seconds_total", "process", "part")

    assert {host[pid][1] for pid in pids} == {"cpu"}
    of_hook = host[str(node.hooked.pid)][0]
    assert list(running.series("torch_process_info", "process", "pid")) == [(of_hook, str(node.hooked.pid))]
    assert list(running.series("torch_steps_total", "process")) == [(of_hook,)]
    assert all(cpu[host[pid][0], "process"] > 0 for pid in pids)


def test_no_output_has_arguments_or_environments(node: Node) -> None:
    with Training([sys.executable, "-c", CODE], Path(), GPUGAUGE_HOOK="0") as other:
        pids = {str(each.pid) for each in (node.hooked, node.plain, other)}
        wait_for(
            lambda: pids <= {pid for (pid,) in node.running.series("gpu_process_host_info", "pid")}, 60, "all are shown"
        )
        wait_for(lambda: http(f"{node.running.url}/metrics")[1].count(b"train.py") >= 2, 60, "so are their programs")
        paths = ("/metrics", "/", "/api/v1/status", "/-/ready", "/-/healthy")
        outputs = {path: http(node.running.url + path)[1].decode() for path in paths}
    outputs["the log"] = node.running.log.read_text()

    assert "train.py" in outputs["/api/v1/status"]
    assert [place for place, text in outputs.items() if SECRET in text] == []


def test_the_count_in_prometheus_is_that_of_the_script(node: Node) -> None:
    """It is the last test of the node, because it ends the training."""
    server, seen = node.server, dict[float, float]()
    at = 'training_last_step_timestamp_seconds or label_replace(torch_steps_total, "steps", "1", "", "")'

    def steps_and_times() -> bool:
        last, steps = (
            float(each["value"][1]) for each in sorted(server.query(at), key=lambda each: "steps" in each["metric"])
        )
        seen[steps] = last
        return len(seen) >= 5

    wait_for(steps_and_times, 60, "Prometheus scrapes five counts")
    count = node.hooked.count()
    wait_for(lambda: server.value("count(training_end_timestamp_seconds)") == 1, 60, "the end is shown")
    wait_for(lambda: not server.query("torch_parameter_bytes"), 60, "its gauges are absent")

    assert server.value("sum(torch_steps_total)") == count["steps"]
    for steps, last in seen.items():
        # The hook's time of a step and the script's own: a busy machine may stop the script between them.
        assert last == pytest.approx(count["times"][int(steps) - 1], abs=1), steps


def test_two_pid_namespaces_give_two_sets_of_series(tmp_path: Path) -> None:
    unshare = new_pid_namespace()
    with (
        daemon(tmp_path, "--driver.mode=off") as running,
        train(running, tmp_path / "1.json", *unshare) as one,
        train(running, tmp_path / "2.json", *unshare) as two,
    ):
        wait_for(lambda: len(running.series("torch_steps_total", "process")) == 2, 60, "two sets of series")
        own_pids = running.series("torch_process_info", "process", "container_pid")
        counts = {one.count()["steps"], two.count()["steps"]}
        wait_for(lambda: set(running.series("torch_steps_total", "process").values()) == counts, 60, "the last steps")

    assert [pid for _, pid in own_pids] == ["1", "1"]


def test_no_library_at_all(tmp_path: Path) -> None:
    with daemon(tmp_path, environment={"LD_LIBRARY_PATH": ""}) as running:
        known = {("library_not_found",): 0.0}
        wait_for(lambda: running.series("gpugauge_driver_up", "reason") == known, 60, "the driver has been tried")
        assert http(running.url + "/-/ready")[0] == 200
