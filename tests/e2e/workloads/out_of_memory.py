"""Runs out of memory now and then, catches that, and goes on with less."""

import torch

from tests.e2e.workloads.loop import begun, train

while True:
    train(steps=40)
    try:
        torch.empty(1 << 50)
    except RuntimeError:
        begun()
