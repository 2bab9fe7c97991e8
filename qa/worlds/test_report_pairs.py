"""Pairs of real trainings on the CPU, scraped by a real Prometheus: what was changed between the two is named."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.drawn import draws
from tests.e2e.programs import GPUGAUGE, daemon, prometheus, prometheus3, wait_for
from tests.needs import need

from gpugauge.cli.main import main

SECONDS = 12.0
SAME = 0.05  # share by which steps that are said not to have changed may differ
UNEXPLAINED = "No setting that was reported explains it"
TRAINING = """
import json, sys, time, torch
from torch.utils.data import DataLoader, Dataset
o = json.loads(sys.argv[1])
class Items(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, at):
        time.sleep(o["item"])
        return torch.randn(8)
if o["deterministic"]: torch.use_deterministic_algorithms(True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end, steps = None, []
for batch in DataLoader(Items(), batch_size=o["batch"], num_workers=o["workers"]):
    end = end or time.monotonic() + o["seconds"]
    with torch.autocast("cpu", torch.bfloat16, enabled=o["autocast"]):
        loss = model(batch).sum()
    loss.backward()
    time.sleep(o["work"])
    optimizer.step()
    optimizer.zero_grad()
    steps.append(time.monotonic())
    if steps[-1] > end: break
print((steps[-1] - steps[0]) / (len(steps) - 1))
"""
# By the change that is planted: what differs, by what factor the work of a step is longer, and what the answer has.
CHANGES: dict[str, tuple[dict[str, object], float, str]] = {
    "workers": ({"workers": 0}, 1.0, "explains it: loader workers"),
    "batch": ({"batch": 8, "workers": 0}, 1.0, "explains it: loader batch size"),
    "autocast": ({"autocast": True}, 1.5, "explains it: autocast"),
    "deterministic": ({"deterministic": True}, 1.5, "explains it: deterministic"),
    "own code": ({}, 1.6, UNEXPLAINED),
    "none": ({}, 1.0, "No change"),
}


def options(draw: random.Random) -> dict[str, object]:
    batch = 4
    work = draw.uniform(0.04, 0.08)
    item = draw.uniform(0.6, 0.9) * work / batch
    common: dict[str, object] = {"batch": batch, "workers": 2, "item": item, "work": work, "seconds": SECONDS}
    return {**common, "autocast": False, "deterministic": False}


@pytest.mark.e2e
@pytest.mark.everything
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_what_was_changed_between_two_runs_is_named(tmp_path: Path) -> None:
    wrong, pairs = [], [*(list(CHANGES)[n % 5] for n in draws(5, 12)), *("none" for _ in draws(2, 5))]
    program = prometheus3("prometheus") if draws(1, 2)[-1] else need("prometheus")
    with daemon(tmp_path) as running:
        target = running.url.removeprefix("http://")
        with prometheus(tmp_path, target, interval="2s", program=program) as server:
            for number, change in enumerate(pairs):
                answer, differ = compared(running.socket, server.url, change, number)
                print(f"{number} {change} ({differ:.1%} by their own clocks): {answer}", flush=True)
                right = [CHANGES[change][2]]
                if change == "none" and abs(differ - SAME) < 0.015:
                    right.append(UNEXPLAINED)
                elif change == "none" and differ > SAME:  # others have used the machine
                    right = [UNEXPLAINED]
                wrong += [] if any(each in answer for each in right) else [(number, change, answer)]
    assert not [pair for pair in wrong if pair[1] == "none"], wrong
    assert 10 * len(wrong) <= len(pairs), wrong


def compared(socket: Path, url: str, change: str, number: int) -> tuple[str, float]:
    """Run two trainings side by side, so that both have the same machine; return what the report says of them, and by
    what share their steps differ.
    """
    draw, job = random.Random(f"{number} {change}"), 100 * os.getpid() + 2 * number
    before = options(draw)
    differing, factor, _ = CHANGES[change]
    if change == "batch":
        before["workers"] = 0
    after = {**before, **differing, "work": before["work"] * factor}  # type: ignore[operator]  # a number
    both = [before, after] if draw.random() < 0.5 else [after, before]
    running = []
    for at, each in enumerate(both):
        environment = {**os.environ, "SLURM_JOB_ID": str(job + at), "GPUGAUGE_HOOK_SOCKET": str(socket)}
        command = [GPUGAUGE, "run", "--quiet", "--", sys.executable, "-c", TRAINING, json.dumps(each)]
        variables = {**environment, "OMP_NUM_THREADS": "1"}
        running.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True))
    short, long = sorted(float(each.communicate(timeout=300)[0]) for each in running)
    arguments = ["report", "--compare", *(f"slurm:root/{job + at}" for at in range(2)), "--prometheus.url", url]

    time.sleep(5)  # until the last steps are scraped

    def scraped() -> str:
        done = CliRunner().invoke(main, arguments)
        return "" if "has no counters" in done.output or "no process" in done.output else done.output

    return " ".join(wait_for(scraped, 30, "both are scraped").split()), long / short - 1
