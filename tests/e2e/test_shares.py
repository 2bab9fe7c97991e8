"""A drawn training under the real daemon: page, status, doctor and the line at its end state the same shares."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.drawn import seeds
from tests.e2e.daily import seed as of_the_day
from tests.e2e.programs import GPUGAUGE, PATIENCE, daemon, http, wait_for

pytestmark = pytest.mark.e2e

# Arguments: seconds of start-up, of a wait for data, of a step, of an evaluation, and a folder. It ends when the file
# `end` is there, and writes after each evaluation what it has spent on each part.
TRAIN = """
import json, os, sys, time, torch, gpugauge.hook as hook
from pathlib import Path
start, wait, step, evaluation = map(float, sys.argv[1:5])
folder, spent, cycles = Path(sys.argv[5]), {"waiting for data": 0.0, "evaluating": 0.0, "the rest": 0.0}, 0
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, i):
        time.sleep(wait)
        return torch.zeros(4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
time.sleep(start)
loader = iter(torch.utils.data.DataLoader(Data(), batch_size=1))
last = time.monotonic()
def passed(part):
    global last
    now = time.monotonic()
    spent[part] += now - last
    last = now
while not (folder / "end").exists():
    for _ in range(10):
        batch = next(loader)
        passed("waiting for data")
        model(batch).sum().backward()
        time.sleep(step)
        optimizer.step()
        passed("the rest")
    with hook.phase("eval"): time.sleep(evaluation)
    passed("evaluating")
    cycles += 1
    (folder / "part").write_text(json.dumps([cycles, spent]))
    os.replace(folder / "part", folder / "spent")
"""
OF_REST = r"own\s+code\s+and\s+computation|waiting\s+for\s+a\s+CPU|asleep"
PERCENT = re.compile(rf"(\d+)\s+%\s+(waiting\s+for\s+data|evaluating|the\s+rest|{OF_REST})")


def stated(text: str) -> dict[str, int]:
    """Return the shares that a text states first, by part; those of the rest are one."""
    found: dict[str, int] = {}
    for share, part in PERCENT.findall(re.sub(r"<[^>]*>", " ", text)):
        found.setdefault(" ".join(part.split()), int(share))
    rest = [found.pop(part) for part in [*found] if re.fullmatch(OF_REST, part)]
    return found | ({"the rest": sum(rest)} if rest else {})


def out(*arguments: str) -> str:
    return subprocess.run([GPUGAUGE, *arguments], capture_output=True, text=True, check=False).stdout


@seeds([of_the_day()])
def test_every_place_states_the_same_shares(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    start, wait, step, evaluation = rng.uniform(4, 8), rng.uniform(0.01, 0.1), rng.uniform(0.01, 0.1), rng.uniform(0, 1)
    (tmp_path / "train.py").write_text(TRAIN)
    with ExitStack() as stack:
        running = stack.enter_context(daemon(tmp_path, f"--driver.state-file={tmp_path / 'state'}"))
        command = [GPUGAUGE, "run", "--", sys.executable, str(tmp_path / "train.py")]
        command += [*map(str, (start, wait, step, evaluation)), str(tmp_path)]
        environment = {**os.environ, "GPUGAUGE_HOOK": "1", "GPUGAUGE_HOOK_SOCKET": str(running.socket)}
        training = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        stack.callback(training.kill)
        address = running.url.removeprefix("http://")

        def shares() -> dict[str, float]:
            facts = json.loads(http(f"{running.url}/api/v1/status")[1])
            found: dict[str, float] = next((p["step_shares"] for p in facts["without_gpu"] if p["hook"]), {})
            return found

        def cycles() -> int:
            file = tmp_path / "spent"
            number: int = json.loads(file.read_text())[0] if file.exists() else 0
            return number

        wait_for(lambda: bool(shares()), 60, "the training is judged")
        enough = cycles() + 6
        wait_for(lambda: cycles() >= enough, 60, "it has evaluated a few times more")
        views = {
            "page": http(running.url)[1].decode(),
            "status": out("status", "--verbose", "--url", address),
            "doctor": out("doctor", str(training.pid), "--url", address, "--checks"),
        }
        (tmp_path / "end").touch()
        _, errors = training.communicate(timeout=PATIENCE)

    found = {name: stated(text) for name, text in views.items()} | {"end": stated(errors)}
    spent = json.loads((tmp_path / "spent").read_text())[1]
    truth = {part: seconds / sum(spent.values()) for part, seconds in spent.items()}
    for place, parts in found.items():
        assert parts, (place, views.get(place, errors))
        for part, share in truth.items():
            # The training goes on between the views.
            assert parts.get(part, 0) == pytest.approx(100 * share, abs=8), (place, found)
        assert sum(parts.values()) == pytest.approx(100, abs=1), place
