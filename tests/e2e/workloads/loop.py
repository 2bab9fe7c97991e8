"""A training that is what it should be, about 40 steps a second: for most scripts here, the part that is in order."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

torch.set_num_threads(1)


def begun() -> None:
    """Tell the test that from now on everything is as it was planted. (What a notebook prints goes elsewhere.)"""
    Path(os.environ["BEGUN"]).touch()


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a small model on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def batches(size: int = 16, seconds: float = 0.0) -> Iterator[list[torch.Tensor]]:
    """Yield batches of a loader for ever; each takes so long to load."""

    def collate(items: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        time.sleep(seconds)
        return [torch.stack(column) for column in zip(*items, strict=True)]

    data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=size, collate_fn=collate)


def train(steps: float = float("inf"), size: int = 16, load: float = 0.0, pause: float = 0.02) -> None:
    """Train for so many steps."""
    model, optimizer = model_and_optimizer()
    for number, (x, y) in enumerate(batches(size, load)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(pause)
        if number == 20 and steps == float("inf"):
            begun()
        if number + 1 >= steps:
            return


if __name__ == "__main__":
    train()
