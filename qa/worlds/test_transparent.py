"""Programs print the same with and without the hook, and a compiled loop has the same graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawn import draws, seeds
from tests.hook.conftest import RunFork, fork, forks

__all__ = ["fork", "forks"]  # fixtures

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("transparent.py")
COMPILED = """
import warnings
warnings.filterwarnings("error", "Dynamo does not know", UserWarning)
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


def unnoticed(program: str, fork: RunFork, *arguments: str) -> str:
    """Run the program without the hook and with it, which it does not notice. Return its output."""
    plain, hooked = (fork(program, arguments, GPUGAUGE_HOOK=switch) for switch in "01")
    output, errors = plain.communicate()
    assert plain.returncode == 0, errors
    assert hooked.communicate()[0] == output
    assert hooked.returncode == 0
    return output


@seeds(draws(1, 3))
def test_a_program_does_not_notice_the_hook(seed: int, fork: RunFork) -> None:
    assert "all errors arrived: True" in unnoticed(PROGRAM.read_text(), fork, str(seed))


@pytest.mark.everything
def test_a_compiled_loop_has_the_same_graphs(fork: RunFork) -> None:
    unnoticed(COMPILED, fork)
