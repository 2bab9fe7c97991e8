"""Real trainings with and without the hook, in the metrics from /proc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import daemon, wait_for
from tests.e2e.test_main_job import SMALL, train

pytestmark = pytest.mark.e2e


def test_trainings_with_and_without_the_hook_are_one_process_each(tmp_path: Path) -> None:
    alone = [sys.executable, SMALL, "60", str(tmp_path / "alone.json")]
    with (
        daemon(tmp_path, "--driver.mode=off") as running,
        train(running, 60, tmp_path / "hooked.json") as hooked,
        subprocess.Popen(alone) as plain,
    ):
        pids = {str(hooked.pid), str(plain.pid)}
        # /proc is scanned every ten seconds.
        wait_for(
            lambda: pids <= {pid for (pid,) in running.series("gpu_process_host_info", "pid")}, 40, "both are shown"
        )
        wait_for(lambda: running.series("torch_steps_total", "process"), 20, "the hook reports steps")
        info = running.series("gpu_process_host_info", "process", "pid", "torch_build")
        host = {pid: (process, build) for process, pid, build in info}
        inside = running.series("torch_process_info", "process", "pid")
        steps = running.series("torch_steps_total", "process")
        cpu = running.series("gpu_process_cpu_seconds_total", "process", "part")
        for process in (hooked, plain):
            process.kill()

    assert {host[pid][1] for pid in pids} == {"cpu"}
    assert list(inside) == [(host[str(hooked.pid)][0], str(hooked.pid))]
    assert list(steps) == [(host[str(hooked.pid)][0],)]
    assert all(cpu[host[pid][0], "process"] > 0 for pid in pids)
