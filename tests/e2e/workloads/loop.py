"""A healthy training of about 40 steps a second, and parts of it for the other workloads."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

torch.set_num_threads(1)


def begun() -> None:
    """Create the file that marks the begin of the planted fault; the output of a notebook does not reach the test."""
    Path(os.environ["BEGUN"]).touch()


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a small model on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def batches(size: int = 16, seconds: float = 0.0) -> Iterator[list[torch.Tensor]]:
    """Yield batches of a loader without end; loading a batch takes `seconds`."""

    def collate(items: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        time.sleep(seconds)
        return [torch.stack(column) for column in zip(*items, strict=True)]

    data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1))
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=size, collate_fn=collate)


def train(steps: float = float("inf"), size: int = 16, load: float = 0.0, pause: float = 0.02) -> None:
    """Train for `steps` steps."""
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
