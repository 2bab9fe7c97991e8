"""A drawn training under the real daemon: page, status, doctor and the line at its end state the same shares."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.programs import GPUGAUGE, daemon, http, wait_for

pytestmark = pytest.mark.e2e

# Arguments: seconds of start-up, of a wait for data, of a step, of an evaluation, and the file at which it ends.
TRAIN = """
import os, sys, time, torch, gpugauge.hook as hook
start, wait, step, evaluation = map(float, sys.argv[1:5])
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, i):
        time.sleep(wait)
        return torch.zeros(4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
time.sleep(start)
for number, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=1)):
    model(batch).sum().backward()
    time.sleep(step)
    optimizer.step()
    if number % 10 == 9:
        with hook.phase("eval"): time.sleep(evaluation)
    if os.path.exists(sys.argv[5]): break
"""
PERCENT = re.compile(r"(\d+)\s+%\s+(waiting\s+for\s+data|evaluating|the\s+rest)")


def stated(text: str) -> dict[str, int]:
    """Return the shares that a text states first, by part."""
    found: dict[str, int] = {}
    for share, part in PERCENT.findall(re.sub(r"<[^>]*>", " ", text)):
        found.setdefault(" ".join(part.split()), int(share))
    return found


def out(*arguments: str) -> str:
    return subprocess.run([GPUGAUGE, *arguments], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_every_place_states_the_same_shares(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    start, wait, step, evaluation = rng.uniform(4, 8), rng.uniform(0.01, 0.1), rng.uniform(0.01, 0.1), rng.uniform(0, 1)
    cycle = 10 * (wait + step) + evaluation
    (tmp_path / "train.py").write_text(TRAIN)
    with daemon(tmp_path, f"--driver.state-file={tmp_path / 'state'}") as running:
        command = [GPUGAUGE, "run", "--", sys.executable, str(tmp_path / "train.py")]
        command += [*map(str, (start, wait, step, evaluation)), str(tmp_path / "end")]
        environment = {**os.environ, "GPUGAUGE_HOOK": "1", "GPUGAUGE_HOOK_SOCKET": str(running.socket)}
        training = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        address = running.url.removeprefix("http://")

        def shares() -> dict[str, float]:
            facts = json.loads(http(f"{running.url}/api/v1/status")[1])
            found: dict[str, float] = next((p["step_shares"] for p in facts["without_gpu"] if p["hook"]), {})
            return found

        wait_for(lambda: bool(shares()), 60, "the training is judged")
        time.sleep(6 * cycle)
        views = {
            "page": http(running.url)[1].decode(),
            "status": out("status", "--url", address),
            "doctor": out("doctor", str(training.pid), "--url", address, "--checks"),
        }
        (tmp_path / "end").touch()
        _, errors = training.communicate(timeout=60)

    found = {name: stated(text) for name, text in views.items()} | {"end": stated(errors)}
    truth = {"waiting for data": 10 * wait / cycle, "evaluating": evaluation / cycle, "the rest": 10 * step / cycle}
    for place, parts in found.items():
        assert parts, (place, views.get(place, errors))
        for part, share in truth.items():
            # The training goes on between the views, and sleeps last longer than asked for.
            assert parts.get(part, 0) == pytest.approx(100 * share, abs=5), (place, found)
        assert sum(parts.values()) == pytest.approx(100, abs=1), place
    waits = re.search(r"Data wait +(\d+) % of the last minute", views["doctor"])
    assert waits
    assert int(waits[1]) == pytest.approx(found["doctor"]["waiting for data"], abs=1)
