"""A training that computes all the time, for a cgroup with a fifth of a CPU."""

import torch

from tests.e2e.workloads.loop import batches, begun, model_and_optimizer

model, optimizer = model_and_optimizer()
begun()
for x, y in batches(256):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
