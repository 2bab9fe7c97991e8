"""A training with its model on the CPU, and a torch that reports a CUDA build."""

import torch

torch.version.cuda = "12.8"

from tests.e2e.workloads.loop import train  # noqa: E402  (after torch is patched)

train()
