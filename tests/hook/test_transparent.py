"""Programs print the same with and without the hook, and a compiled loop has the same graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("transparent.py")
ROOT = Path(__file__).parents[2]
COMPILED = """
import torch, torch._dynamo as dynamo
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(torch.ones(8, 2), batch_size=2)
@torch.compile(backend="eager")
def epoch():
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()
found = [epoch().item() for _ in range(8)]
counters = dynamo.utils.counters
print(found, counters["stats"].get("unique_graphs"), sorted(counters["graph_break"].values()))
"""


def output(command: list[str], hooked: bool, folder: Path) -> tuple[int, str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GPUGAUGE_HOOK": "1" if hooked else "0"}
    if hooked:
        environ = launch.environment(environ, str(folder / "hook.sock"))
    done = subprocess.run(
        [sys.executable, *command], env=environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout or done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_a_program_does_not_notice_the_hook(seed: int, tmp_path: Path) -> None:
    plain, hooked = (output([str(PROGRAM), str(seed)], hooked, tmp_path) for hooked in (False, True))

    assert plain[0] == 0, plain
    assert "all errors arrived: True True" in plain[1]
    assert hooked == plain


def test_a_compiled_loop_has_the_same_graphs(tmp_path: Path) -> None:
    command = ["-W", "error:Dynamo does not know:UserWarning", "-c", COMPILED]
    plain, hooked = (output(command, hooked, tmp_path) for hooked in (False, True))

    assert plain[0] == 0, plain
    assert hooked == plain
