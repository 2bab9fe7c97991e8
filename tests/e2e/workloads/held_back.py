"""Computes all the time: whoever gives it a fifth of a CPU sees that it is held back."""

import torch

from tests.e2e.workloads.loop import batches, begun, model_and_optimizer

model, optimizer = model_and_optimizer()
begun()
for x, y in batches(256):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
