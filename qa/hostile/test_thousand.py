"""A thousand real training processes, on a fake torch of one file that has the functions that the hook needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.programs import GPUGAUGE, Daemon, daemon, wait_for
from tests.e2e.test_daemon import Scraper
from tests.hook.conftest import FAKE_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.everything]
NUMBER = 1000
# Forked from one process that has imported torch. Process n makes n steps, then a batch a second. After a line on
# standard input, every fifth process ends by itself and the others are killed. The program prints a line when all have
# begun, and when all have ended.
THOUSAND = """
import gc, os, select, signal, sys, torch

number = int(sys.argv[1])
begun, enough = os.pipe(), os.pipe()

def train(steps):
    os.close(enough[1])
    optimizer, batches = torch.Optimizer(), torch.Iterator()
    for _ in range(steps - 1):
        optimizer.step()
    while not select.select([enough[0]], [], [], 1.0)[0]:
        if steps:
            optimizer.step()
            os.write(begun[1], b".")
            steps = 0
        next(batches)
    sys.exit()

gc.freeze()  # keeps the memory of the forked processes shared
pids = []
for count in range(1, number + 1):
    pid = os.fork()
    if not pid:
        train(count)
    pids.append(pid)
os.close(begun[1])
for _ in pids:
    assert os.read(begun[0], 1), "they ended"
print("begun", flush=True)
sys.stdin.readline()
for number, pid in enumerate(pids):
    if number % 5:
        os.kill(pid, signal.SIGKILL)
os.close(enough[1])
for _ in pids:
    os.wait()
print("gone", flush=True)
sys.stdin.readline()
"""


def lines(running: Daemon, name: str) -> dict[str, float]:
    """Return the series of one metric in text form, because parsing the body of a thousand processes takes seconds."""
    begins = (name + "{", name + " ")
    found = (line.rpartition(" ") for line in running.metrics().splitlines() if line.startswith(begins))
    return {series: float(value) for series, _, value in found}


def values(running: Daemon, name: str) -> list[float]:
    return sorted(lines(running, name).values())


def test_thousand_processes_are_shown_and_end(tmp_path: Path) -> None:
    torch = tmp_path / "site" / "torch" / "__init__.py"
    torch.parent.mkdir(parents=True)
    torch.write_text(FAKE_TORCH)
    pipe, each = subprocess.PIPE, list(range(1, NUMBER + 1))
    with daemon(tmp_path, "--driver.mode=off") as running:
        path = os.pathsep.join(filter(None, [str(torch.parents[1]), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "GPUGAUGE_HOOK_SOCKET": str(running.socket)}
        command = [GPUGAUGE, "run", "--", sys.executable, "-c", THOUSAND, str(NUMBER)]
        with (
            Scraper(running, pause=1.0) as scraper,  # a body has 60,000 lines, and is also polled below
            subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as trainings,
        ):
            assert trainings.stdin
            assert trainings.stdout
            try:
                assert trainings.stdout.readline() == "begun\n"
                wait_for(lambda: values(running, "torch_steps_total") == each, 60, "all steps are shown")
                assert values(running, "gpugauge_hook_sessions") == [NUMBER]
                print("enough", file=trainings.stdin, flush=True)
                assert trainings.stdout.readline() == "gone\n"
                wait_for(lambda: values(running, "gpugauge_hook_sessions") == [0], 60, "all have ended")
                ended = lines(running, "gpugauge_trainings_ended_total")
                rejected = lines(running, "gpugauge_hook_rejected_total")
                print("enough", file=trainings.stdin, flush=True)
                assert trainings.wait(20) == 0
            finally:
                trainings.kill()

    assert {series.split('"')[1]: count for series, count in ended.items() if count} == {
        "killed": NUMBER * 4 / 5,
        "finished": NUMBER / 5,
    }
    assert set(rejected.values()) == {0}
    assert set(scraper.statuses) == {200}
