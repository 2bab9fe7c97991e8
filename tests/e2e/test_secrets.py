"""Arguments and environments of processes may contain secrets, and must not appear in any output of the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import GPUGAUGE, daemon, http, wait_for

pytestmark = pytest.mark.e2e

ARGUMENT, VARIABLE, WORD, CODE = "hunter2-argument", "hunter2-variable", "hunter2-word", "hunter2-code"
# A training, and a second process whose program is an argument.
PROGRAM = """\
import subprocess, sys, time, torch
other = subprocess.Popen([sys.executable, "-c", "import torch, time; token = 'hunter2-code'; time.sleep(60)"])
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], 0.1)
while True:
    weight.sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.mark.parametrize("reports", [True, False], ids=["with the hook", "seen from outside"])
def test_no_output_has_arguments_or_environments(tmp_path: Path, reports: bool) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    flags = ("--driver.mode=off", "--log.level=debug")
    with daemon(tmp_path, *flags) as running:
        command = [sys.executable, "-u", str(program), WORD, f"--token={ARGUMENT}", "--password", ARGUMENT]
        environment = {
            **os.environ,
            "API_TOKEN": VARIABLE,
            "GPUGAUGE_HOOK_SOCKET": str(running.socket),
            "GPUGAUGE_HOOK": str(int(reports)),
        }
        if reports:
            command = [GPUGAUGE, "run", "--", *command]
        with subprocess.Popen(command, env=environment, start_new_session=True) as training:
            try:
                name = "torch_process_info" if reports else "gpu_process_host_info"
                wait_for(lambda: running.series(name, "process"), 60, f"the training is in {name}")
                wait_for(lambda: "train.py" in running.metrics(), 30, "its command is shown")
                outputs = {
                    path: http(running.url + path)[1].decode()
                    for path in ("/metrics", "/", "/api/v1/status", "/-/ready", "/-/healthy")
                }
            finally:
                os.killpg(training.pid, 9)
        running.stop()
        outputs["the log"] = running.log.read_text()

    assert "train.py" in outputs["/metrics"]
    assert "train.py" in outputs["/api/v1/status"]
    for place, text in outputs.items():
        for secret in (ARGUMENT, VARIABLE, WORD, CODE, "hunter2"):
            assert secret not in text, place
