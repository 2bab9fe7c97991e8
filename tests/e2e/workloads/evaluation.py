"""A training with a long evaluation."""

import time

import torch

from tests.e2e.workloads.loop import batches, begun, model_and_optimizer, train

train(steps=80)
model, _ = model_and_optimizer()
model.eval()
begun()
with torch.no_grad():
    for x, _ in batches():
        model(x)
        time.sleep(0.05)
