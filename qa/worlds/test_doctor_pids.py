"""The doctor on pids under which no program runs: real threads, kernel threads and processes that have ended."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner
from tests.doctor.cases import device, driver, findings
from tests.doctor.test_process import known, summary
from tests.drawn import cases

from gpugauge.cli.doctor import command
from gpugauge.doctor import condition
from gpugauge.doctor.process import existence
from gpugauge.status.model import GpuStatus


@cases(
    ("kind", "words"), [("thread", "a thread of the process"), ("zombie", "(a zombie)"), ("kernel", "of the kernel")]
)
def test_no_program_runs_under_the_pid(kind: str, words: str) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    zombie = os.fork()
    if zombie == 0:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    try:
        # In a container there are no threads of the kernel.
        kernel = "2" if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n" else ""
        pids = {"thread": thread.native_id, "zombie": zombie, "kernel": kernel}
        if not pids[kind]:
            return
        found = CliRunner().invoke(command, [str(pids[kind]), "--url", "http://127.0.0.1:1"])
    finally:
        done.set()
        thread.join()
        os.waitpid(zombie, 0)

    assert words in " ".join(found.output.split())
    assert "start it with the hook" not in found.output
    assert "gpugauge run" not in found.output
    assert found.exit_code == 2


@cases(
    ("where", "level", "words"),
    [
        ("machine", "warning", "4194305: the daemon reports it, but it does not run on this machine"),
        ("container", "warning", "4194305: the daemon reports it, but it is not visible in this container"),
        ("namespace", "warning", "4194305: the daemon reports it, but it is not visible in this container"),
        ("simulation", "skipped", "4194305: the daemon simulates it"),
    ],
)
def test_a_process_that_only_the_daemon_sees(where: str, level: str, words: str, tmp_path: Path) -> None:
    seen = known(tmp_path, in_container=where == "container")
    status, _ = seen.daemon
    assert status is not None
    seen.daemon = (replace(status, simulated=where == "simulation"), "")
    if where == "namespace":
        (tmp_path / "proc/self/ns").mkdir(parents=True)
        (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532000]")

    assert summary(existence(seen)) == (level, None, words)


def test_the_condition_is_that_of_its_own_gpus(tmp_path: Path) -> None:
    """Begin with the GPU of another program, and its owner looks in the wrong place."""
    bad = {"compute_mode": "prohibited", "power_limit_milliwatts": 1, "power_limit_default_milliwatts": 9}
    seen = known(tmp_path)
    seen.driver = driver(device(0), device(1, **bad, utilization_percent=80))
    status, _ = seen.daemon
    assert status is not None
    (process,) = status.without_gpu
    gpus = tuple(
        GpuStatus(uuid=f"GPU-{n}", index=n, pcie_width=16 - 8 * n, pcie_width_max=16, processes=(process,) * (n == 0))
        for n in range(2)
    )
    checks = condition.modes, condition.values, condition.clocks, condition.pcie, condition.use
    for found, severe in (((), True), (gpus, False)):
        seen.__dict__ = {
            k: v for k, v in vars(seen).items() if k not in {"process", "gpus", "gpu_problems", "reported"}
        }
        seen.daemon = (replace(status, gpus=found, without_gpu=() if found else status.without_gpu), "")
        lines = [finding for check in checks for finding in findings(check, seen)]
        assert any(finding.severity for finding in lines) == severe
        assert any("GPU 1" in finding.found for finding in lines) == severe
