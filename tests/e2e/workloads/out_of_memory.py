"""A training that runs out of memory from time to time, catches the error, and continues."""

import torch

from tests.e2e.workloads.loop import begun, train

while True:
    train(steps=40)
    try:
        torch.empty(1 << 50)
    except RuntimeError:
        begun()
